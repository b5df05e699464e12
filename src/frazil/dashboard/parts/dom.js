// Stands before the script of every part. Text of strangers goes in by textContent alone.

function make(tag, className, text, testid) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (testid) node.dataset.testid = testid;
  return node;
}

