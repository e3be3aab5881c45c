//! Enums whose variants have names in options and messages.

/// Declares an enum with a name for each variant, and the error for an unknown name.
macro_rules! named {
    (
        $(#[$doc:meta])* $name:ident, $error:ident, $what:literal,
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

        /// An unknown name.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("unknown {} {text:?}; expected one of: {}", $what, [$($text),+].join(", "))]
        pub struct $error {
            text: String,
        }

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<$name, $error> {
                let found = $name::NAMES.iter().find(|(name, _)| *name == text);
                found.map(|(_, value)| *value).ok_or_else(|| $error { text: text.to_owned() })
            }
        }
    };
}

pub(crate) use named;
