"""Gymnasium: its environments as ours (`FromGymnasium`), and ours as its environments (`ToGymnasium`)."""
