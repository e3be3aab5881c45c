//! Enums whose values have a fixed name in labels, JSON and settings.

/// Declares an enum with one name per value: `ALL` (all values, in order), `as_str` (the name) and `meaning` (the
/// value's doc comment, for generated documents).
///
/// ```
/// tokometer_metrics::closed_enum! {
///     /// A direction.
///     pub enum Direction {
///         /// From the client
///         /// to the server.
///         Request = "request",
///         /// From the server to the client.
///         Response = "response",
///     }
/// }
/// assert_eq!(Direction::ALL.map(Direction::as_str), ["request", "response"]);
/// assert_eq!(Direction::Request.meaning(), "From the client to the server.");
/// ```
#[macro_export]
macro_rules! closed_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $( $(#[doc = $text:literal])+ $variant:ident = $word:literal, )+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $( $(#[doc = $text])+ $variant, )+ }

        #[allow(dead_code, reason = "not every enum needs all three")]
        impl $name {
            /// All values, in the order of their declaration.
            $vis const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// The name of the value in labels, JSON and settings.
            $vis const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The doc comment of the value.
            $vis fn meaning(self) -> &'static str {
                match self { $($name::$variant => concat!($($text),+).trim_start()),+ }
            }
        }
    };
}
