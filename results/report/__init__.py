"""The report: one HTML or Markdown page."""
