r"""One module a page: each has \`page(view)\`."""
