"""Progress of a run for people and trackers: public values, and unprotected ones where they were asked for."""
