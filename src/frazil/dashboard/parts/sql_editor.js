// A textarea with transparent text over the same text with syntax colours. Typing, selection, undo and
// assistive technology are those of the browser.

const KEYWORDS = new Set(
  ("select from where group order by having limit offset with as on using join left right full inner outer cross " +
    "asof lateral union all except intersect distinct and or not in is null like ilike between case when then " +
    "else end over partition rows range preceding following unbounded current row filter qualify window asc desc " +
    "nulls first last interval exists any true false cast try_cast values recursive materialized escape similar " +
    "to exclude replace sample pivot unpivot summarize describe show explain analyze").split(" "),
);
const TOKENS =
  /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*(?:'|$)|\$\$[\s\S]*?(?:\$\$|$))|("(?:[^"]|"")*(?:"|$))|(\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)|([A-Za-z_]\w*)/gi;
const HIGHLIGHTED_MAX = 50000; // characters; highlighting more would slow down typing
const IS_MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const states = new WeakMap();

function pieces(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(TOKENS)) {
    const [token, comment, string, , number, word] = match;
    const kind = comment ? "comment" : string ? "string" : number ? "number"
      : word && KEYWORDS.has(word.toLowerCase()) ? "keyword" : "";
    if (!kind) continue;
    if (match.index > at) found.push([text.slice(at, match.index), ""]);
    found.push([token, kind]);
    at = match.index + token.length;
  }
  if (at < text.length) found.push([text.slice(at), ""]);
  return found;
}

function span(text, kind) {
  if (!kind) return document.createTextNode(text);
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

// Returns the range of the word at `offset`, or of the last character.
function wrongRange(text, offset) {
  const begin = Math.min(offset, Math.max(0, text.length - 1));
  const word = /^(?:\w+|\S)/.exec(text.slice(begin));
  return [begin, begin + (word ? word[0].length : 1)];
}

function paint(state) {
  const text = state.text.value;
  const parts = text.length > HIGHLIGHTED_MAX ? [[text, ""]] : pieces(text);
  const [low, high] = state.mark && state.mark.sql === text ? wrongRange(text, state.mark.offset) : [-1, -1];
  const nodes = [];
  let at = 0;
  for (const [piece, kind] of parts) {
    const cuts = [at, ...[low, high].filter((cut) => cut > at && cut < at + piece.length), at + piece.length];
    for (let i = 0; i + 1 < cuts.length; i++) {
      const isWrong = cuts[i] >= low && cuts[i] < high;
      nodes.push(span(text.slice(cuts[i], cuts[i + 1]), (kind + (isWrong ? " wrong" : "")).trim()));
    }
    at += piece.length;
  }
  nodes.push(document.createTextNode("\n")); // so that an empty last line has a height
  state.paint.replaceChildren(...nodes);
  scroll(state);
}

function scroll(state) {
  state.paint.scrollTop = state.text.scrollTop;
  state.paint.scrollLeft = state.text.scrollLeft;
}

// Uses the browser's insert command if it exists, so that the user can undo it.
function insert(state, words) {
  const { text } = state;
  text.focus();
  if (!document.execCommand("insertText", false, words)) {
    text.setRangeText(words, text.selectionStart, text.selectionEnd, "end");
  }
  paint(state);
}

function insertName(state, name) {
  const before = state.text.value.slice(0, state.text.selectionStart);
  insert(state, /\w$/.test(before) ? ` ${name}` : name);
}

function run(state) {
  if (state.running || !state.text.value.trim()) return;
  state.sent = state.text.value;
  state.component.setTriggerValue("run", state.text.value);
}

function row(kind, name, type, doc, onClick) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "row " + kind;
  made.title = doc;
  const label = document.createElement("span");
  label.className = "name";
  label.textContent = name;
  const hint = document.createElement("span");
  hint.className = "type";
  hint.textContent = type;
  made.append(label, hint);
  made.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the cursor in the text
  made.addEventListener("click", onClick);
  return made;
}

function drawTables(state) {
  const words = state.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const nodes = [];
  for (const table of state.tables) {
    const matches = (text) => words.every((word) => text.toLowerCase().includes(word));
    const columns = table.columns.filter((c) => !words.length || matches(`${table.name} ${c.name} ${c.type} ${c.doc}`));
    if (words.length && !columns.length && !matches(table.name)) continue;
    const isOpen = words.length > 0 || state.open.has(table.name);
    const use = table.is_table ? "Click to show its columns; double click to insert its name." : "Click to show them.";
    const doc = `${table.doc} ${use}`;
    const head = row("table", table.name, table.note, doc, () => {
      if (!state.open.delete(table.name)) state.open.add(table.name);
      drawTables(state);
    });
    head.setAttribute("aria-expanded", String(isOpen));
    if (table.is_table) head.addEventListener("dblclick", () => insertName(state, table.name));
    nodes.push(head);
    if (!isOpen) continue;
    for (const column of columns) {
      const doc = `${column.type}\n${column.doc}\nClick to insert.`;
      nodes.push(row("column", column.name, column.type, doc, () => insertName(state, column.name)));
    }
  }
  if (!nodes.length) {
    const none = document.createElement("div");
    none.className = "none";
    none.textContent = state.tables.length ? "No matching tables or columns." : "The list of tables is unavailable.";
    nodes.push(none);
  }
  state.tree.replaceChildren(...nodes);
}

function begin(parentElement) {
  const find = (name) => parentElement.querySelector("." + name);
  const state = {
    text: find("text"), paint: find("paint"), run: find("run"), hint: find("hint"),
    filter: find("filter"), tree: find("tree"), open: new Set(["logs"]), version: null, tables: [], mark: null, sent: "",
  };
  state.hint.textContent = IS_MAC ? "⌘ Enter" : "Ctrl + Enter";
  state.text.addEventListener("input", () => paint(state));
  state.text.addEventListener("scroll", () => scroll(state));
  state.text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.stopPropagation();
      run(state);
    } else if (event.key === "Escape") {
      state.text.blur(); // so that Tab leaves the editor
    } else if (event.key === "Tab" && !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      insert(state, "    ");
    } else {
      event.stopPropagation(); // not a shortcut of the page
    }
  });
  state.text.addEventListener("blur", (event) => {
    if (event.relatedTarget && parentElement.contains(event.relatedTarget)) return;
    if (state.text.value !== state.sent) {
      state.sent = state.text.value;
      state.component.setStateValue("draft", state.text.value);
    }
  });
  state.run.addEventListener("click", () => run(state));
  state.filter.addEventListener("input", () => drawTables(state));
  state.filter.addEventListener("keydown", (event) => event.stopPropagation());
  return state;
}

export default function (component) {
  const { data, parentElement } = component;
  const host = parentElement.querySelector(".frame");
  let state = states.get(host);
  const isNew = !state;
  if (isNew) {
    state = begin(parentElement);
    states.set(host, state);
  }
  state.component = component;
  if (state.version !== data.version) {
    state.version = data.version;
    state.text.value = state.sent = data.sql;
    state.text.setSelectionRange(data.sql.length, data.sql.length);
    state.text.scrollTop = 0;
  }
  state.running = data.running;
  state.run.disabled = data.running;
  state.run.textContent = data.running ? "Running…" : "Run";
  state.mark = data.mark ? { offset: data.mark.offset, sql: data.sql } : null;
  paint(state);
  const known = JSON.stringify(data.tables);
  if (isNew || known !== state.known) {
    state.known = known;
    state.tables = data.tables;
    drawTables(state);
  }
}
