"""Gymnasium bridges: `FromGymnasium` imports an environment, `ToGymnasium` exports one."""
