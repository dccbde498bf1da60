"""Text and pages for people: listings, trees, tables, reports."""
