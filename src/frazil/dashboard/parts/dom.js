// Prepended to the script of every component. Telemetry is only ever set as textContent.

function make(tag, className, text, testid) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (testid) node.dataset.testid = testid;
  return node;
}

// A line can break after each dot, so that a narrow column breaks keys between words.
function breakable(node, text) {
  text.split(/(?<=\.)/).forEach((part, at) => node.append(...(at ? [make("wbr"), part] : [part])));
  return node;
}

function short(number) {
  if (number >= 1e6) return `${+(number / 1e6).toPrecision(3)} M`;
  return number >= 1e4 ? `${+(number / 1e3).toPrecision(3)} k` : number.toLocaleString("en");
}

