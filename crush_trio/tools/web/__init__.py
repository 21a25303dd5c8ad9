"""The tools `fetch` and `download`, their requests, and HTML pages as Markdown or text."""
