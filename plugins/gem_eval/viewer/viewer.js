"use strict";
// The viewer's script. It never parses recorded text as markup: all text becomes text nodes.

const ROW = 48; // height of a list row, as in viewer.css
const SLICE = 400; // episodes to search before yielding to the browser
const POLL = 1000; // milliseconds between requests while the server has nothing new
const SCALE = [[-0.05, "≥ -0.05"], [-0.3, "-0.3"], [-1, "-1"], [-2.5, "-2.5"], [-5, "-5"], [-Infinity, "below"]];

const $ = (id) => document.getElementById(id);
const episodes = []; // summaries, for the list
let details = []; // details of each episode as JSON, parsed when it is opened
let vocabulary = new Map(); // texts of token ids
let credits = null; // advantages per episode and turn; null if a server computes them
let order = []; // episodes that pass the filters, sorted
let matches = null; // episodes that match the search; null without a search
let open = -1; // the open episode
let at = -1; // its current turn
let asTokens = false;
let folded = true;
let ascending = true;
let searching = 0;
const rows = []; // elements of the list, reused while it scrolls

function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  for (const child of children) element.append(child); // a string becomes a text node
  return element;
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? "unknown" : String(Number(value.toFixed(digits)));
const signed = (value) => (value > 0 ? "+" : "") + number(value);

// Reading.

function take(lines) {
  for (const line of lines) {
    if (line.startsWith('["d"')) {
      details.push(line);
      continue;
    }
    if (!line) continue;
    const [kind, content] = JSON.parse(line);
    if (kind === "e") episodes.push(content);
    else if (kind === "a") credits = content;
    else if (kind === "v") for (const [id, text] of Object.entries(content)) vocabulary.set(Number(id), text);
  }
}

async function unpack(text) {
  const binary = atob(text.replace(/\s+/g, ""));
  const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).text()).split("\n");
}

async function follow() {
  let generation = 0;
  let next = 0;
  for (;;) {
    let wait = POLL;
    try {
      const response = await fetch(`/lines?generation=${generation}&from=${next}`);
      if (!response.ok) throw new Error(await response.text());
      const answer = await response.json();
      if (answer.generation !== generation) {
        episodes.length = 0;
        details = [];
        vocabulary = new Map();
        open = -1;
        generation = answer.generation;
      }
      next = answer.next;
      if (answer.lines.length) {
        take(answer.lines);
        refill();
        refresh();
        if (open < 0) showFirst();
      }
      if (answer.more) wait = 0;
    } catch (error) {
      $("totals").textContent = `request to the server failed: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// The list.

function refill() {
  for (const [id, name, all] of [["env", "e", "all environments"], ["stop", "s", "any stop reason"]]) {
    const select = $(id);
    const counts = new Map();
    for (const e of episodes) counts.set(e[name], (counts.get(e[name]) || 0) + 1);
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
}

function passes(e) {
  const env = $("env").value, stop = $("stop").value, success = $("success").value, errors = $("errors").value;
  const least = $("least").value, most = $("most").value;
  return (!env || e.e === env) && (!stop || e.s === stop) && (!success || String(e.o) === success) &&
    (!errors || (errors === "yes") === e.w > 0) &&
    (!least || (e.r !== null && e.r >= Number(least))) && (!most || (e.r !== null && e.r <= Number(most))) &&
    (!matches || matches.has(e.n));
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
  totals();
  draw();
}

function totals() {
  const known = order.filter((e) => !e.x);
  const withSuccess = known.filter((e) => e.o !== null);
  const parts = [`${order.length} of ${episodes.length} episodes`];
  if (known.length) parts.push(`return ${number(known.reduce((sum, e) => sum + e.r, 0) / known.length)}`);
  if (withSuccess.length) {
    const successes = withSuccess.filter((e) => e.o).length;
    parts.push(`success ${((100 * successes) / known.length).toFixed(1)}%`);
  }
  const failed = order.length - known.length;
  if (failed) parts.push(`${failed} failed`);
  $("totals").textContent = parts.join(" · ");
}

function draw() {
  const list = $("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const count = Math.min(order.length - first, Math.ceil(list.clientHeight / ROW) + 8);
  while (rows.length < count) {
    const row = make("div", "row", make("div", ""), make("div", "facts"));
    row.setAttribute("role", "option");
    row.addEventListener("click", () => show(Number(row.dataset.n)));
    rows.push(row);
    list.append(row);
  }
  rows.forEach((row, i) => {
    row.hidden = i >= count;
    if (i < count) fill(row, order[first + i], first + i);
  });
}

function fill(row, e, place) {
  row.style.transform = `translateY(${place * ROW}px)`;
  row.classList.toggle("open", e.n === open);
  row.setAttribute("aria-selected", String(e.n === open));
  if (row.dataset.n === String(e.n) && row.dataset.e === e.e) return;
  row.dataset.n = e.n;
  row.dataset.e = e.e;
  const outcome = e.x ? ["failed", "bad"] : e.o === true ? ["✓", "good"] : e.o === false ? ["✗", "bad"] : ["", ""];
  row.firstChild.replaceChildren(
    make("span", outcome[1], outcome[0]),
    make("span", "name", e.c || e.e),
    make("span", "", e.x ? "" : number(e.r)),
  );
  const facts = [`#${e.n}`, `seed ${e.i}`, `${e.t} turn${e.t === 1 ? "" : "s"}`];
  if (e.k !== null) facts.push(`${e.k} tokens`);
  if (e.u) facts.push(`${e.u} tool`);
  row.lastChild.replaceChildren(make("span", "", facts.join(" · ")), make("span", e.x ? "bad" : "", e.s));
  if (e.w) row.lastChild.append(make("span", "warn", `${e.w} error${e.w > 1 ? "s" : ""}`));
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

// One episode.

async function show(n, keep = false) {
  if (!details[n]) return;
  open = n;
  const turn = at, scrolled = $("episode").scrollTop;
  at = -1;
  history.replaceState(null, "", `#${n}`);
  draw();
  const detail = JSON.parse(details[n])[1];
  let advantages = credits && credits[n];
  if (settings.live) {
    try {
      advantages = await (await fetch(`/advantages?episode=${n}`)).json();
    } catch {
      advantages = null;
    }
    if (open !== n) return;
  }
  const e = episodes[n];
  const main = $("episode");
  main.replaceChildren(make("h2", "", e.c ? `${e.c}  (in ${e.e})` : e.e), facts(e, detail));
  if (detail.f) main.append(failure(detail.f));
  if (asTokens) main.append(legend());
  detail.t.forEach((t, i) => main.append(turnOf(t, i, advantages ? advantages[i] : null)));
  if (detail.z) {
    const last = detail.t[detail.t.length - 1];
    main.append(make("div", "bar", make("span", "number", "final observation")), message(last && last.q.use_tool ? "tool" : "user", detail.z));
  }
  main.append(folding("info of the last step", JSON.stringify(detail.q, null, 2)));
  if (keep && turn >= 0) go(turn);
  else main.scrollTop = keep ? scrolled : 0;
}

function facts(e, detail) {
  const line = make("div", "facts-line");
  const add = (name, value, kind = "") => line.append(make("span", kind, `${name} `, make("b", "", value)));
  add("return", e.x ? "unknown" : number(e.r));
  add("success", e.o === null ? "not reported" : e.o ? "yes" : "no", e.o === null ? "" : e.o ? "good" : "bad");
  add("ended", e.s, e.x ? "bad" : "");
  add("seed", String(e.i));
  add("turns", String(e.t));
  if (e.k !== null) add("tokens", String(e.k));
  if (detail.h > 1) add("attempts", String(detail.h), "warn");
  if (e.w) add("errors", String(e.w), "warn");
  add("seconds", number(detail.y, 2));
  if (Object.keys(detail.p).length) add("options", JSON.stringify(detail.p));
  if (detail.w) add("wrappers", detail.w);
  add("advantage", `${settings.estimator}, gamma ${settings.gamma}`);
  return line;
}

function failure(f) {
  const box = make("div", "failure", make("b", "bad", `${f.kind} in ${f.where}`), make("pre", "", f.message));
  if (f.traceback) box.append(folding("traceback", f.traceback));
  return box;
}

function turnOf(t, i, advantage) {
  const section = make("section", "turn");
  section.dataset.turn = i;
  const bar = make("div", "bar", make("span", "number", `turn ${i + 1}`));
  const add = (text, kind = "") => bar.append(make("span", kind, text));
  add(`reward ${number(t.r)}`, t.r > 0 ? "good" : t.r < 0 ? "bad" : "");
  if (t.g !== null) add(`return ${number(t.g)}`);
  if (advantage !== null && advantage !== undefined) add(`advantage ${signed(advantage)}`, advantage > 0 ? "good" : advantage < 0 ? "bad" : "");
  if (t.s !== "valid") add(t.s, t.s === "failed" ? "bad" : "warn");
  if (t.f !== "stop") add(t.f === "length" ? "cut at the token limit" : "nothing sampled", "warn");
  if (t.k !== null) add(`${t.k} tokens`);
  if (t.b && i > 0) add("context rewritten", "warn");
  if (t.q.format_error) add("format error", "bad");
  if (t.q.tool_error) add("tool error", "bad");
  if (t.v) add(`weights ${t.v[0] === t.v[1] ? t.v[0] : `${t.v[0]} to ${t.v[1]}`}`);
  section.append(bar);
  if (asTokens && t.d.length) section.append(tokenBox("prompt", t.d, null, true));
  else for (const [role, text] of t.m) section.append(message(role, text));
  section.append(action(t));
  const info = Object.keys(t.q);
  if (info.length) section.append(folding("info", JSON.stringify(t.q, null, 2)));
  return section;
}

function message(role, text) {
  const box = make("div", `message ${["system", "user", "assistant", "tool"].includes(role) ? role : "user"}`);
  if (role === "tool") box.append(folding(`tool result, ${text.length} characters`, text, !folded));
  else if (role === "system") box.append(folding("system", text, !folded));
  else box.append(make("div", "role", role), make("div", "text", text));
  return box;
}

function action(t) {
  const box = make("div", "message assistant");
  const trained = t.s === "valid";
  const content = asTokens && t.i.length ? tokens(t.i, t.l, !trained) : make("div", "text", t.a);
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

// Keys.

function step(by) {
  if (!order.length) return;
  const place = order.findIndex((e) => e.n === open);
  const next = place < 0 ? 0 : Math.min(order.length - 1, Math.max(0, place + by));
  reveal(next);
  show(order[next].n);
}

function reveal(place) {
  const list = $("list");
  const top = place * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function go(turn) {
  const sections = document.querySelectorAll(".turn");
  if (!sections.length) return;
  at = Math.min(sections.length - 1, Math.max(0, turn));
  sections.forEach((section, i) => section.classList.toggle("at", i === at));
  sections[at].scrollIntoView({ block: "start" });
}

const keys = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  PageDown: () => step(10), PageUp: () => step(-10),
  g: () => step(-Infinity), G: () => step(Infinity), Home: () => step(-Infinity), End: () => step(Infinity),
  n: () => go(at + 1), p: () => go(at - 1),
  t: () => { asTokens = !asTokens; if (open >= 0) show(open, true); },
  f: () => { folded = !folded; if (open >= 0) show(open, true); },
  "/": () => $("search").focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
  if (event.key === "Escape") {
    document.activeElement.blur();
    $("list").focus();
  } else if (!typing && Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});

let drawing = false;
$("list").addEventListener("scroll", () => {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
});
addEventListener("resize", draw);
for (const id of ["env", "stop", "success", "errors", "least", "most", "sort"]) $(id).addEventListener("input", refresh);
$("direction").addEventListener("click", () => {
  ascending = !ascending;
  $("direction").textContent = ascending ? "↑" : "↓";
  refresh();
});
let typed = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(search, 150);
});

// Startup.

const settings = JSON.parse(atob($("settings").textContent));
$("title").textContent = settings.title;

async function begin() {
  if (settings.live) return follow();
  take(await unpack($("data").textContent));
  $("data").remove(); // keep large data in memory only once
  refill();
  refresh();
  return showFirst();
}

function showFirst() {
  const wanted = Number(location.hash.slice(1));
  if (location.hash && episodes[wanted]) return show(wanted);
  return order.length ? show(order[0].n) : undefined;
}

begin().catch((error) => {
  $("totals").textContent = `cannot show this page: ${error.message}`;
});
