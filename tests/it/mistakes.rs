//! Mistakes in a configuration file, and their errors.

use std::path::Path;

use tokometer::config::{Config, Environment, Error, Flags};

/// YAML with one mistake, and its expected error: position (file:line:column), key path, and part of the suggested fix.
pub(crate) type Mistake = (&'static str, &'static str, &'static str, &'static str);

/// Asserts that each mistake gives exactly the expected error.
pub(crate) fn assert_reported(mistakes: &[Mistake]) {
    for (yaml, place, path, fix) in mistakes {
        let read = Config::from_layers(Some((Path::new("t.yaml"), yaml)), &Flags::default(), &Environment::default());
        let Err(Error::Invalid(problems)) = read else { panic!("{yaml}\nexpected an invalid configuration: {read:?}") };
        let [problem] = problems.as_slice() else { panic!("{yaml}\nexpected one problem: {problems:?}") };
        assert_eq!((problem.origin.to_string().as_str(), problem.path.as_str()), (*place, *path), "{yaml}");
        assert!(problem.message.contains(fix), "{yaml}\nexpected: {fix}\nmessage:  {}", problem.message);
    }
}
