"""Vector environments: many environments with one `step`."""
