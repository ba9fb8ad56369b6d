// Return the page as lines of text, one per block, with numbered elements in their places.
() => {
  document.querySelectorAll("[data-gem]").forEach((e) => e.removeAttribute("data-gem"));
  const lines = [], elements = [];
  let line = "";
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const quote = (text) => "'" + clean(text).slice(0, 120) + "'";
  const flush = (prefix) => {
    const text = clean(line);
    if (text) lines.push((prefix || "") + text);
    line = "";
  };
  const label = (e) => {
    if (!e.labels || !e.labels.length) return "";
    const copy = e.labels[0].cloneNode(true);
    copy.querySelectorAll("input, select, textarea, button").forEach((inner) => inner.remove());
    return clean(copy.textContent);
  };
  const name = (e) => {
    const aria = clean(e.getAttribute("aria-label"));
    const text = aria || label(e) || clean(e.placeholder) || clean(e.title);
    if (text || ["TEXTAREA", "SELECT"].includes(e.tagName)) return text;
    return clean(e.innerText) || (role(e) === "button" ? clean(e.value) : "");
  };
  const role = (e) => {
    const tag = e.tagName.toLowerCase();
    if (tag === "a" && e.hasAttribute("href")) return "link";
    if (tag === "button" || tag === "summary") return "button";
    if (tag === "textarea") return "textbox";
    if (tag === "select") return "combobox";
    if (tag === "input") {
      if (e.type === "hidden") return "";
      if (["submit", "button", "reset", "image"].includes(e.type)) return "button";
      if (["checkbox", "radio"].includes(e.type)) return e.type;
      return "textbox";
    }
    return ["button", "link"].includes(e.getAttribute("role")) ? e.getAttribute("role") : "";
  };
  const describe = (e, kind) => {
    let text = kind + " " + quote(name(e));
    if (kind === "textbox") text += " = '" + e.value + "'";
    if (kind === "checkbox" || kind === "radio") text += e.checked ? " (on)" : " (off)";
    if (kind === "combobox") {
      const options = [...e.options].map((o) => clean(o.text));
      text += " = " + quote(options[e.selectedIndex]) + " of " + options.map(quote).join(", ");
      elements[elements.length - 1].options = options;
    }
    return text + (e.disabled ? " (disabled)" : "");
  };
  const walk = (node, row) => {
    for (const child of node.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) {
        // The text of a label is the name of its field; do not print it twice.
        const around = child.parentElement.closest("label");
        if (!(around && around.control)) line += child.textContent;
        continue;
      }
      if (child.nodeType !== Node.ELEMENT_NODE) continue;
      if (["SCRIPT", "STYLE", "TEMPLATE"].includes(child.tagName)) continue;
      if (!child.checkVisibility()) continue;
      const kind = role(child);
      if (kind) {
        elements.push({ kind: kind, disabled: !!child.disabled });
        child.setAttribute("data-gem", elements.length);
        line += " [" + elements.length + "] " + describe(child, kind) + " ";
        continue;
      }
      const tag = child.tagName;
      if (tag === "TD" || tag === "TH") {
        if (child.previousElementSibling) line += " | ";
        walk(child, true);
        continue;
      }
      if (tag === "BR" && !row) {
        flush();
        continue;
      }
      const block = getComputedStyle(child).display;
      if (row || block === "inline" || block === "inline-block" || block === "contents") {
        line += row ? " " : "";
        walk(child, row);
        continue;
      }
      flush();
      walk(child, false);
      flush(/^H[1-6]$/.test(tag) ? "#".repeat(+tag[1]) + " " : tag === "LI" ? "- " : "");
    }
  };
  walk(document.body, false);
  flush();
  const path = location.pathname + location.search;
  return { title: document.title, path: path, lines: lines, elements: elements };
}
