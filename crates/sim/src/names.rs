//! Enums whose variants have names in options and messages.

/// An unknown name or a bad argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {text:?}; expected one of: {known}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: String,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, text: &str, known: &[&str]) -> UnknownName {
        UnknownName { what, text: text.to_owned(), known: known.join(", ") }
    }
}

/// Declares an enum with a name for each variant.
macro_rules! named {
    (
        $(#[$doc:meta])* $name:ident, $what:literal,
        { $($(#[$note:meta])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$note])* $variant,)+ }

        impl $name {
            /// Every variant with its option name.
            pub const NAMES: &[(&str, $name)] = &[$(($text, $name::$variant),)+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)+ })
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<$name, $crate::UnknownName> {
                let found = $name::NAMES.iter().find(|(name, _)| *name == text);
                found.map(|(_, value)| *value).ok_or_else(|| $crate::UnknownName::new($what, text, &[$($text),+]))
            }
        }
    };
}

pub(crate) use named;
