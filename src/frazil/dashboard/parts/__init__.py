"""Components that are drawn in the browser, each with its JavaScript and CSS in this folder."""
