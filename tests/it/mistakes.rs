//! Mistakes in a configuration file, and what is said of each.

use std::path::Path;

use tokometer::config::Config;
use tokometer::config::Environment;
use tokometer::config::Error;
use tokometer::config::Flags;

/// YAML with one mistake, the place that must be named (line:column), the key path, and words of the mend.
pub(crate) type Mistake = (&'static str, &'static str, &'static str, &'static str);

/// Each is told once, with its place, its key and its mend, and nothing else is.
pub(crate) fn assert_told(mistakes: &[Mistake]) {
    for (yaml, place, path, mend) in mistakes {
        let read = Config::from_layers(Some((Path::new("t.yaml"), yaml)), &Flags::default(), &Environment::default());
        let Err(Error::Invalid(problems)) = read else { panic!("{yaml}\nnot one that is invalid: {read:?}") };
        let [problem] = problems.as_slice() else { panic!("{yaml}\none problem is expected: {problems:?}") };
        assert_eq!((problem.origin.to_string().as_str(), problem.path.as_str()), (*place, *path), "{yaml}");
        assert!(problem.message.contains(mend), "{yaml}\nexpected: {mend}\nmessage:  {}", problem.message);
    }
}
