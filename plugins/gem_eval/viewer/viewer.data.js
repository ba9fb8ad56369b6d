"use strict";
// The viewer's script. It never parses recorded text as markup: all text becomes text nodes.
// This part reads the episodes and has the helpers of the other parts.

const POLL = 1000; // milliseconds between requests while the server has nothing new

const $ = (id) => document.getElementById(id);
const episodes = []; // summaries, for the list
let details = []; // details of each episode as JSON, parsed when it is opened
let vocabulary = new Map(); // texts of token ids
let recomputed = null; // advantages per episode and turn; null if a server computes them

function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  for (const child of children) element.append(child); // a string becomes a text node
  return element;
}

function button(name, text, action) {
  const element = make("button", name, text);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? "unknown" : String(Number(value.toFixed(digits)));
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Return the share of successes, as the results table counts it; null if none is reported.
function successOf(some) {
  const known = some.filter((e) => !e.x);
  return known.some((e) => e.o !== null) ? known.filter((e) => e.o).length / known.length : null;
}

function returnOf(some) {
  const known = some.filter((e) => !e.x);
  return known.length ? mean(known.map((e) => e.r)) : null;
}

function take(lines) {
  for (const line of lines) {
    if (line.startsWith('["d"')) {
      details.push(line);
      continue;
    }
    if (!line) continue;
    const [kind, content] = JSON.parse(line);
    if (kind === "e") episodes.push(content);
    else if (kind === "a") recomputed = content;
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
  let first = true;
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
        generation = answer.generation;
        first = true;
      }
      next = answer.next;
      if (answer.lines.length || first) {
        take(answer.lines);
        refill();
        refresh();
        if (first) openHash();
        first = false;
      }
      if (answer.more) wait = 0;
    } catch (error) {
      $("totals").textContent = `request to the server failed: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

// Return the advantages of an episode as [values, whether the trainer recorded them].
async function advantagesOf(n, detail) {
  if (detail.c) return [detail.c, true];
  if (!settings.live) return [recomputed && recomputed[n], false];
  try {
    return [await (await fetch(`/advantages?episode=${n}`)).json(), false];
  } catch {
    return [null, false];
  }
}
