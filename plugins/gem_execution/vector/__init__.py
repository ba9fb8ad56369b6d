"""Vector environments: many environments stepped as one."""
