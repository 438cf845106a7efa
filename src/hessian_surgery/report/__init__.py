"""Reports of operations, comparisons and diagnoses, as pages, Markdown, model cards and figures."""
