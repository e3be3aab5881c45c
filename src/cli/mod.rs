//! The command line: what a person types, checked and handed to `app`.
