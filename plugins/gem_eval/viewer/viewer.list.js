// The list: filters, order, and the rows that are in view.

const ROW = 48; // height of a list row, as in viewer.css
const SOME = "with a problem", NONE = "without a problem";
const SLICE = 400; // episodes to search before yielding to the browser

let order = []; // episodes that pass the filters, sorted
let matches = null; // episodes that match the search; null without a search
let ascending = true;
let searching = 0;
const rows = []; // elements of the list, reused while it scrolls

function refillSelect(id, values, all) {
  const select = $(id);
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  const chosen = select.value;
  const options = [["", all], ...[...counts.keys()].sort().map((v) => [v, `${v} (${counts.get(v)})`])];
  select.replaceChildren(
    ...options.map(([value, text]) => {
      const option = make("option", "", text);
      option.value = value;
      return option;
    }),
  );
  select.value = counts.has(chosen) ? chosen : "";
}

function refill() {
  refillSelect("env", episodes.map((e) => e.c || e.e), "all environments");
  refillSelect("stop", episodes.map((e) => e.s), "any stop reason");
  refillSelect("problem", episodes.flatMap(problemsOf), "problems or none");
  $("updates").hidden = !episodes.some((e) => e.d !== null);
  $("purpose").hidden = !episodes.some((e) => e.y) || episodes.every((e) => e.y);
}

const problemsOf = (e) => {
  const kinds = e.f ? [...e.p, e.f] : e.p;
  return kinds.length || e.w ? [SOME, ...kinds] : [NONE];
};

function passes(e) {
  const within = (value, least, most) =>
    (!$(least).value || (value !== null && value >= Number($(least).value))) &&
    (!$(most).value || (value !== null && value <= Number($(most).value)));
  const chosen = (id, value) => !$(id).value || String(value) === $(id).value;
  return chosen("env", e.c || e.e) && chosen("stop", e.s) && chosen("success", e.o) && chosen("purpose", e.y) &&
    (!$("problem").value || problemsOf(e).includes($("problem").value)) &&
    within(e.r, "least", "most") && within(e.d, "first", "last") && (!matches || matches.has(e.n));
}

function refresh() {
  const by = $("sort").value;
  const sign = ascending ? 1 : -1;
  order = episodes.filter(passes);
  order.sort((a, b) => {
    let x = a[by], y = b[by];
    if (x === y) return a.n - b.n;
    if (x === null) return 1; // unknown values come last in both directions
    if (y === null) return -1;
    if (typeof x === "boolean") [x, y] = [Number(x), Number(y)];
    return x < y ? -sign : sign;
  });
  $("spacer").style.height = `${order.length * ROW}px`;
  $("reset").hidden = FILTERS.every((id) => !$(id).value);
  totals();
  draw();
  redrawMain();
}

// Set filters by id, and clear those that are null.
function filter(values) {
  for (const [id, value] of Object.entries(values)) $(id).value = value === null ? "" : String(value);
  refresh();
}

function totals() {
  const parts = [`${order.length} of ${count(episodes.length, "episode")}`];
  const meanReturn = returnOf(order), success = successOf(order), failed = order.filter((e) => e.x).length;
  if (meanReturn !== null) parts.push(`return ${number(meanReturn)}`);
  if (success !== null) parts.push(`success ${percent(success)}`);
  if (failed) parts.push(`${failed} failed`);
  $("totals").textContent = parts.join(" · ");
}

function draw() {
  const list = $("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const amount = Math.min(order.length - first, Math.ceil(list.clientHeight / ROW) + 8);
  while (rows.length < amount) {
    const row = make("div", "row", make("div", ""), make("div", "facts"));
    row.setAttribute("role", "option");
    row.addEventListener("click", () => show(Number(row.dataset.n)));
    rows.push(row);
    list.append(row);
  }
  rows.forEach((row, i) => {
    row.hidden = i >= amount;
    if (i < amount) fill(row, order[first + i], first + i);
  });
}

function outcomeOf(e) {
  if (e.x) return make("span", "bad", "failed");
  return e.o === true ? make("span", "good", "✓") : e.o === false ? make("span", "bad", "✗") : make("span", "");
}

function fill(row, e, place) {
  row.style.transform = `translateY(${place * ROW}px)`;
  row.classList.toggle("open", e.n === open);
  row.setAttribute("aria-selected", String(e.n === open));
  if (row.dataset.n === String(e.n) && row.dataset.e === e.e) return;
  row.dataset.n = e.n;
  row.dataset.e = e.e;
  row.firstChild.replaceChildren(outcomeOf(e), make("span", "name", e.c || e.e), make("span", "", e.x ? "" : number(e.r)));
  const facts = [`#${e.n}`, `seed ${e.i}`, count(e.t, "turn")];
  if (e.d !== null) facts.splice(1, 0, `update ${e.d}`);
  if (e.k !== null) facts.push(count(e.k, "token"));
  if (e.u) facts.push(count(e.u, "tool call"));
  row.lastChild.replaceChildren(make("span", "fact-text", facts.join(" · ")), make("span", e.x ? "bad" : "", e.s));
  if (e.w) row.lastChild.append(make("span", "warn", count(e.w, "error")));
}

async function search() {
  const text = $("search").value;
  const run = ++searching;
  if (!text) {
    matches = null;
    refresh();
    return;
  }
  const written = JSON.stringify(text).slice(1, -1); // as the text appears in the searched JSON
  const pattern = new RegExp(written.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  const hits = new Set();
  for (let i = 0; i < details.length; i++) {
    if (pattern.test(details[i]) || pattern.test(episodes[i].e)) hits.add(i);
    if (i % SLICE === SLICE - 1) {
      await new Promise((resolve) => setTimeout(resolve));
      if (run !== searching) return; // the query changed
    }
  }
  matches = hits;
  refresh();
}
