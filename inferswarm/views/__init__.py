"""What people see: terminal text, static HTML, drawings."""
