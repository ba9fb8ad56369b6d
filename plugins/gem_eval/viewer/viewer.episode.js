// One episode: its turns, with rewards, advantages and tokens.

const SCALE = [[-0.05, "≥ -0.05"], [-0.3, "-0.3"], [-1, "-1"], [-2.5, "-2.5"], [-5, "-5"], [-Infinity, "below"]];
const FINISHES = { length: "cut at the token limit", empty: "nothing sampled", refused: "refused" };

let open = -1; // the open episode
let at = -1; // its current turn
let asTokens = false;
let folded = true;

async function show(n, keep = false) {
  if (!details[n]) return;
  view = "episode";
  open = n;
  const turn = at, scrolled = $("episode").scrollTop;
  at = -1;
  history.replaceState(null, "", `#${n}`);
  draw();
  const detail = JSON.parse(details[n])[1];
  const [advantages, trained] = await advantagesOf(n, detail);
  if (open !== n || view !== "episode") return;
  const e = episodes[n];
  const main = $("episode");
  main.replaceChildren(make("h2", "", e.c ? `${e.c}  (in ${e.e})` : e.e), facts(e, detail, trained));
  if (detail.f) main.append(failure(detail.f));
  if (asTokens) main.append(legend());
  detail.t.forEach((t, i) => main.append(turnOf(t, i, advantages ? advantages[i] : null, trained, e.x)));
  if (detail.z) {
    const last = detail.t[detail.t.length - 1];
    main.append(make("div", "bar", make("span", "number", "final observation")), message(last && last.q.use_tool ? "tool" : "user", detail.z));
  }
  main.append(folding("info of the last step", JSON.stringify(detail.q, null, 2)));
  if (keep && turn >= 0) go(turn);
  else main.scrollTop = keep ? scrolled : 0;
}

function facts(e, detail, trained) {
  const line = make("div", "facts-line");
  const add = (name, value, kind = "") => line.append(make("span", kind, `${name} `, make("b", "", value)));
  add("return", e.x ? "unknown" : number(e.r));
  add("success", e.o === null ? "not reported" : e.o ? "yes" : "no", e.o === null ? "" : e.o ? "good" : "bad");
  add("ended", e.s, e.x ? "bad" : "");
  if (e.d !== null) add("update", e.y ? `${e.d}, evaluation` : String(e.d));
  else if (e.y) add("purpose", "evaluation");
  add("seed", String(e.i));
  add("turns", String(e.t));
  if (e.k !== null) add("tokens", String(e.k));
  if (detail.h > 1) add("attempts", String(detail.h), "warn");
  if (e.w) add("errors", String(e.w), "warn");
  add("seconds", number(detail.y, 2));
  if (Object.keys(detail.p).length) add("options", JSON.stringify(detail.p));
  if (detail.w) add("wrappers", detail.w);
  add("advantages", trained ? "as trained" : `recomputed: ${settings.estimator}, gamma ${settings.gamma}`);
  const size = groupOf(e).length;
  if (size > 1) line.append(button("link", `compare ${size} episodes of this seed`, () => showGroup(e.n)));
  return line;
}

function failure(f) {
  const box = make("div", "failure", make("b", "bad", `${f.kind} in ${f.where}`), make("pre", "", f.message));
  if (f.traceback) box.append(folding("traceback", f.traceback));
  return box;
}

function turnOf(t, i, advantage, trained, failed) {
  const section = make("section", "turn");
  section.dataset.turn = i;
  section.append(turnBar(t, i, advantage, trained));
  if (asTokens && t.d.length) section.append(tokenBox("prompt", t.d, null, true));
  else for (const [role, text] of t.m) section.append(message(role, text));
  section.append(action(t, failed));
  const info = Object.keys(t.q);
  if (info.length) section.append(folding("info", JSON.stringify(t.q, null, 2)));
  return section;
}

function turnBar(t, i, advantage, trained) {
  const bar = make("div", "bar", make("span", "number", `turn ${i + 1}`));
  const add = (text, kind = "") => bar.append(make("span", kind, text));
  add(`reward ${number(t.r)}`, t.r > 0 ? "good" : t.r < 0 ? "bad" : "");
  if (t.g !== null) add(`return ${number(t.g)}`);
  if (advantage !== null && advantage !== undefined) {
    const kind = advantage > 0 ? "good" : advantage < 0 ? "bad" : "";
    add(`advantage ${signed(advantage)}${trained ? "" : " (recomputed)"}`, kind);
  }
  if (t.s !== "valid") add(t.s, t.s === "failed" ? "bad" : "warn");
  if (t.f !== "stop") add(FINISHES[t.f] || t.f, "warn");
  if (t.k !== null) add(count(t.k, "token"));
  if (t.b && i > 0) add("context rewritten", "warn");
  if (t.q.format_error) add("format error", "bad");
  if (t.q.tool_error) add("tool error", "bad");
  if (t.v) add(`weights ${t.v[0] === t.v[1] ? t.v[0] : `${t.v[0]} to ${t.v[1]}`}`);
  return bar;
}

function message(role, text) {
  const box = make("div", `message ${["system", "user", "assistant", "tool"].includes(role) ? role : "user"}`);
  if (role === "tool") box.append(folding(`tool result, ${count(text.length, "character")}`, text, !folded));
  else if (role === "system") box.append(folding("system", text, !folded));
  else box.append(make("div", "role", role), make("div", "text", text));
  return box;
}

function action(t, failed) {
  const box = make("div", "message assistant");
  const trained = t.s === "valid" && !failed;
  const content = asTokens && t.i.length ? tokens(t.i, t.l, !trained) : make("div", "text", t.a);
  if (t.h) box.append(folding(`thinking, ${count(t.h.length, "character")}`, t.h, !folded));
  if (t.q.use_tool) {
    const calls = Array.isArray(t.q.tool_calls) ? t.q.tool_calls : [];
    const names = calls.map((c) => c && c.name).filter(Boolean).join(", ");
    const fold = folding("tool call ", "", !folded);
    fold.firstChild.append(make("bdi", "", names));
    fold.lastChild.replaceWith(content);
    if (t.q.tool_error) fold.firstChild.className = "bad";
    box.append(fold);
  } else box.append(make("div", "role", "model"), content);
  return box;
}

function tokenBox(role, ids, logprobs, masked) {
  return make("div", "message user", make("div", "role", role), tokens(ids, logprobs, masked));
}

function tokens(ids, logprobs, masked) {
  const box = make("div", "text");
  ids.forEach((id, i) => {
    const known = vocabulary.get(id);
    const p = logprobs ? logprobs[i] : null;
    const level = p === null ? "plain" : `l${SCALE.findIndex(([bound]) => p >= bound)}`;
    const span = make("span", `token ${masked ? "masked" : level}`, known === undefined ? `⟨${id}⟩` : known);
    span.title = `id ${id}, ${p === null ? "no logprob" : `logprob ${p}`}, ${masked ? "not trained" : "trained"}`;
    box.append(span);
  });
  return box;
}

function legend() {
  const line = make("div", "legend", "logprob:");
  SCALE.forEach(([, text], i) => line.append(make("span", "", make("span", `token l${i}`, text))));
  line.append(make("span", "", make("span", "token plain", "sampled, no logprob")));
  line.append(make("span", "", make("span", "token masked", "not trained")));
  return line;
}

function folding(title, text, unfolded = false) {
  const box = make("details", "", make("summary", "", title), make("pre", "", text));
  box.open = unfolded;
  return box;
}
