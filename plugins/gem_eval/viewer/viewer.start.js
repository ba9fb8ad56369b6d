// Keys, and the start of the page.

const FILTERS = ["search", "env", "stop", "success", "problem", "purpose", "least", "most", "first", "last"];

let view = "overview"; // what is open: overview, episode or group

function showOverview() {
  view = "overview";
  open = -1;
  history.replaceState(null, "", "#");
  draw();
  overview();
  $("episode").scrollTop = 0;
}

// After the filters changed: what is open must pass them.
function redrawMain() {
  if (view === "overview") overview();
  else if (!order.length) {
    $("episode").replaceChildren(make("p", "quiet", "No episode passes the filters."));
    open = -1;
  } else if (!order.some((e) => e.n === open)) {
    $("list").scrollTop = 0;
    show(order[0].n);
  }
}

function openHash() {
  const [, group, text] = /^#(group-)?(\d+)$/.exec(location.hash) || [];
  const wanted = Number(text);
  if (text === undefined || !episodes[wanted]) return showOverview();
  reveal(Math.max(0, order.findIndex((e) => e.n === wanted)));
  return group ? showGroup(wanted) : show(wanted);
}

function step(by) {
  if (!order.length) return;
  const place = order.findIndex((e) => e.n === open);
  const next = place < 0 ? (by === Infinity ? order.length - 1 : 0) : Math.min(order.length - 1, Math.max(0, place + by));
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

function showAgain() {
  if (view === "episode" && open >= 0) show(open, true);
  else if (view === "group" && open >= 0) showGroup(open);
}

const keys = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  PageDown: () => step(10), PageUp: () => step(-10),
  g: () => step(-Infinity), G: () => step(Infinity), Home: () => step(-Infinity), End: () => step(Infinity),
  n: () => go(at + 1), p: () => go(at - 1),
  o: showOverview,
  s: () => { if (open >= 0) view === "group" ? show(open) : showGroup(open); },
  t: () => { asTokens = !asTokens; showAgain(); },
  f: () => { folded = !folded; showAgain(); },
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
for (const id of [...FILTERS.slice(1), "sort"]) $(id).addEventListener("input", refresh);
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
$("reset").addEventListener("click", () => {
  for (const id of FILTERS) $(id).value = "";
  search();
});
$("overview").addEventListener("click", showOverview);

const settings = JSON.parse(atob($("settings").textContent));
$("title").textContent = settings.title;

async function begin() {
  if (settings.live) return follow();
  take(await unpack($("data").textContent));
  $("data").remove(); // keep large data in memory only once
  refill();
  refresh();
  return openHash();
}

begin().catch((error) => {
  $("totals").textContent = `cannot show this page: ${error.message}`;
});
