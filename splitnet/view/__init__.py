"""What people see: diagrams, timelines, tables and reports."""
