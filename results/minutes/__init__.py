"""Where the time of a run went: per host and case, from records and events."""
