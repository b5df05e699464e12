"""Parts of pages that are drawn in the browser: each a module with its JavaScript and CSS beside it."""
