// The overview: what happened in the episodes that pass the filters.

const DISTINCT = 12; // a histogram has a bar per value up to this number of values
const BINS = 20; // and this number of bins above it
const UPDATES = 40; // the most bars of the chart over updates

function overview() {
  const main = $("episode");
  main.replaceChildren(make("h2", "", settings.title));
  if (!episodes.length) {
    main.append(make("p", "quiet", settings.live ? "No episode is recorded yet." : "The record has no episodes."));
    return;
  }
  if (!order.length) {
    main.append(make("p", "quiet", "No episode passes the filters."));
    return;
  }
  main.append(headline());
  if (order.some((e) => !e.x)) main.append(section("Returns", histogram()));
  if (order.some((e) => e.d !== null)) main.append(section(...updateChart()));
  main.append(section("Environments", environmentTable()));
  main.append(section("How episodes ended", countTable("stop", order.map((e) => e.s))));
  const problems = order.flatMap(problemsOf).filter((kind) => kind !== SOME && kind !== NONE);
  if (problems.length) main.append(section("Problems", countTable("problem", problems)));
}

const section = (title, ...content) => make("section", "part", make("h3", "", title), ...content);

function headline() {
  const line = make("div", "facts-line");
  const add = (name, value, kind = "") => line.append(make("span", kind, `${name} `, make("b", "", value)));
  const success = successOf(order), tokens = order.filter((e) => e.k !== null), failed = order.filter((e) => e.x);
  add("episodes", String(order.length));
  add("return", number(returnOf(order)));
  if (success !== null) add("success", percent(success));
  add("turns", number(mean(order.map((e) => e.t)), 1));
  if (tokens.length) add("tokens", number(mean(tokens.map((e) => e.k)), 0));
  add("seeds", String(new Set(order.map((e) => `${e.e} ${e.i}`)).size));
  if (failed.length) add("failed", String(failed.length), "bad");
  return line;
}

// Bars of equal width; a bar is {size, good, amount, label, title, action}; `good` is a share of it.
// Many bars have no room for every number: only the highest bar has its amount, every fifth its label.
function bars(items) {
  const chart = make("div", "chart");
  const most = Math.max(...items.map((item) => item.size)) || 1;
  const dense = items.length > DISTINCT, highest = items.findIndex((item) => item.size === most);
  items.forEach((item, i) => {
    const column = button("column", "", item.action);
    column.title = item.title;
    const area = make("span", "area");
    const bar = make("span", "bar-all");
    bar.style.height = `${(100 * item.size) / most}%`;
    const good = make("span", "bar-good");
    good.style.height = `${100 * item.good}%`;
    bar.append(good);
    area.append(bar);
    const amount = make("span", "amount", dense && i !== highest ? "" : item.amount);
    column.append(amount, area, make("span", "value", dense && i % 5 ? "" : item.label));
    chart.append(column);
  });
  return chart;
}

function histogram() {
  const known = order.filter((e) => !e.x);
  const values = [...new Set(known.map((e) => e.r))].sort((a, b) => a - b);
  let bins;
  if (values.length <= DISTINCT) {
    bins = values.map((value) => known.filter((e) => e.r === value));
  } else {
    const least = values[0], width = (values[values.length - 1] - least) / BINS;
    bins = Array.from({ length: BINS }, () => []);
    for (const e of known) bins[Math.min(BINS - 1, Math.floor((e.r - least) / width))].push(e);
  }
  const chart = bars(
    bins.map((bin) => {
      if (!bin.length) return { size: 0, good: 0, amount: "", label: "", title: "no episode", action: () => {} };
      let low = Infinity, high = -Infinity;
      for (const e of bin) [low, high] = [Math.min(low, e.r), Math.max(high, e.r)];
      const range = low === high ? number(low) : `${number(low)} to ${number(high)}`;
      return {
        size: bin.length,
        good: bin.filter((e) => e.o).length / bin.length,
        amount: String(bin.length),
        label: number(low, 2),
        title: `return ${range}: ${count(bin.length, "episode")}, ${bin.filter((e) => e.o).length} with success`,
        action: () => filter({ least: low, most: high }),
      };
    }),
  );
  const note = known.some((e) => e.o !== null) ? "episodes by return; green: success" : "episodes by return";
  return make("div", "", chart, make("p", "quiet note", `${note}; click a bar to filter`));
}

function updateChart() {
  const trained = order.filter((e) => e.d !== null && !e.y);
  const updates = [...new Set((trained.length ? trained : order.filter((e) => e.d !== null)).map((e) => e.d))].sort((a, b) => a - b);
  const width = Math.ceil(updates.length / UPDATES);
  const judged = successOf(trained) !== null;
  const items = [];
  for (let i = 0; i < updates.length; i += width) {
    const first = updates[i], last = updates[Math.min(i + width, updates.length) - 1];
    const own = order.filter((e) => e.d !== null && e.d >= first && e.d <= last && (!trained.length || !e.y));
    const value = judged ? successOf(own) || 0 : returnOf(own);
    const name = first === last ? `update ${first}` : `updates ${first} to ${last}`;
    const amount = value === null ? "" : judged ? `${Math.round(100 * value)}` : number(value, 2);
    items.push({ value: value === null ? 0 : value, amount, label: String(first), name, own, first, last });
  }
  const floor = Math.min(0, ...items.map((item) => item.value));
  const chart = bars(
    items.map((item) => ({
      size: item.value - floor,
      good: judged ? 1 : 0,
      amount: item.amount,
      label: item.label,
      title: `${item.name}: ${judged ? "success" : "return"} ${judged ? percent(item.value) : number(item.value)}, ${count(item.own.length, "episode")}`,
      action: () => filter({ first: item.first, last: item.last }),
    })),
  );
  return [judged ? "Success by update, in %" : "Return by update", chart];
}

function table(headers, lines) {
  const head = make("tr", "", ...headers.map((text) => make("th", "", text)));
  const body = lines.map((cells) => make("tr", "", ...cells.map((cell) => make("td", "", cell))));
  return make("div", "wide", make("table", "", make("thead", "", head), make("tbody", "", ...body)));
}

function environmentTable() {
  const byEnv = new Map();
  for (const e of order) {
    const name = e.c || e.e;
    if (!byEnv.has(name)) byEnv.set(name, []);
    byEnv.get(name).push(e);
  }
  const lines = [...byEnv.entries()].sort().map(([name, own]) => {
    const success = successOf(own), tokens = own.filter((e) => e.k !== null);
    return [
      button("link", name, () => filter({ env: name })),
      String(own.length),
      success === null ? "not reported" : percent(success),
      number(returnOf(own)),
      number(mean(own.map((e) => e.t)), 1),
      tokens.length ? number(mean(tokens.map((e) => e.k)), 0) : "",
      String(own.filter((e) => e.x).length || ""),
    ];
  });
  return table(["environment", "episodes", "success", "return", "turns", "tokens", "failed"], lines);
}

function countTable(id, values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  const lines = [...counts.entries()].sort((a, b) => b[1] - a[1]).map(([value, amount]) => [
    button("link", value, () => filter({ [id]: value })),
    String(amount),
    percent(amount / order.length),
  ]);
  return table([id === "stop" ? "stop reason" : "problem", "episodes", "share"], lines);
}
