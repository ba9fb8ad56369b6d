// A group: the episodes of one seed, side by side.

const SIDE_BY_SIDE = 12; // the most columns

const groupOf = (e) => episodes.filter((other) => other.g === e.g);

async function showGroup(n) {
  const group = groupOf(episodes[n]);
  const shown = group.slice(0, SIDE_BY_SIDE);
  view = "group";
  open = n;
  history.replaceState(null, "", `#group-${n}`);
  draw();
  const parsed = shown.map((e) => JSON.parse(details[e.n])[1]);
  const advantages = await Promise.all(shown.map((e, i) => advantagesOf(e.n, parsed[i])));
  if (open !== n || view !== "group") return;
  const main = $("episode");
  const first = episodes[n];
  const update = first.d === null ? "" : `, update ${first.d}`;
  main.replaceChildren(make("h2", "", `${first.c || first.e}, seed ${first.i}${update}`));
  const note = shown.length < group.length ? `the first ${shown.length} of ${count(group.length, "episode")}` : count(group.length, "episode");
  const success = successOf(group);
  const facts = [note, `return ${number(returnOf(group))}`, ...(success === null ? [] : [`success ${percent(success)}`])];
  if (advantages.every(([, trained]) => trained)) facts.push("advantages as trained");
  main.append(make("p", "quiet", facts.join(" · ")));
  for (const [role, text] of parsed[0].t.length ? parsed[0].t[0].m : []) main.append(message(role, text));
  const columns = make("div", "columns");
  shown.forEach((e, i) => columns.append(columnOf(e, parsed[i], ...advantages[i])));
  main.append(columns);
  main.scrollTop = 0;
}

function columnOf(e, detail, advantages, trained) {
  const head = make("div", "column-head", outcomeOf(e), button("link", `#${e.n}`, () => show(e.n)), make("b", "", e.x ? "" : number(e.r)));
  const column = make("div", "one", head, make("div", "quiet", `${count(e.t, "turn")} · ${e.s}`));
  if (detail.f) column.append(failure(detail.f));
  detail.t.forEach((t, i) => {
    if (i > 0) for (const [role, text] of t.m) column.append(message(role, text));
    column.append(turnBar(t, i, advantages ? advantages[i] : null, trained), action(t, e.x));
  });
  if (detail.z) column.append(message("user", detail.z));
  return column;
}
