//! Everything a person may set: YAML, environment, flags, defaults; checked, with errors that name the place.
