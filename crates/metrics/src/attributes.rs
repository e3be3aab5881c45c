//! Attributes of series: their values, and those of listeners and servers.

use std::borrow::Cow;
use std::sync::Arc;

use crate::table::{Key, Metric};

/// The value of an attribute. A key always uses the same variant, so that equal values compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Text from an external source, cleaned and limited in cardinality.
    Text(Arc<str>),
    /// A value from a closed set.
    Word(&'static str),
    /// A number.
    Number(i64),
    /// A flag.
    Flag(bool),
    /// Unknown: the attribute is omitted.
    Unknown,
}

impl Value {
    /// The value as a label's text; empty if it is unknown.
    pub fn to_text(&self) -> Cow<'_, str> {
        match self {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Word(word) => Cow::Borrowed(word),
            Value::Number(number) => Cow::Owned(number.to_string()),
            Value::Flag(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
            Value::Unknown => Cow::Borrowed(""),
        }
    }
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Value {
        Value::Word(word)
    }
}

impl From<Arc<str>> for Value {
    fn from(text: Arc<str>) -> Value {
        Value::Text(text)
    }
}

impl From<Option<Arc<str>>> for Value {
    fn from(text: Option<Arc<str>>) -> Value {
        text.map_or(Value::Unknown, Value::Text)
    }
}

/// Known attributes in the order of [`Metric::keys`], optional attributes last. Unknown attributes are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attributes(Vec<(Key, Value)>);

impl Attributes {
    /// Selects from `known` and `extra` the attributes that the metric has.
    pub fn of(metric: &Metric, known: &[(Key, Value)], extra: &[(Key, Value)]) -> Attributes {
        let find = |key| known.iter().chain(extra).find(|(k, v)| *k == key && *v != Value::Unknown).cloned();
        Attributes(metric.keys().chain(metric.optional.iter().copied()).filter_map(find).collect())
    }

    /// Only the attributes with these keys.
    pub fn only(&self, keys: &[Key]) -> Attributes {
        Attributes(self.0.iter().filter(|(key, _)| keys.contains(key)).cloned().collect())
    }

    /// The attributes, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Value)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The labels for Prometheus. Includes unknown labels, because all series of an OpenMetrics family should have the
    /// same label names. The value of an unknown label is empty, which Prometheus treats as absent. Optional labels are
    /// present in all series of a metric or in none.
    pub fn labels(&self, metric: &Metric) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let find = |key| self.0.iter().find(|(k, _)| *k == key).map(|(_, value)| value.to_text());
        let always = metric.keys().map(move |key| (key.label(), find(key).unwrap_or_default()));
        always.chain(metric.optional.iter().filter_map(move |key| Some((key.label(), find(*key)?))))
    }
}

/// The attributes of each listener and of the server behind it.
#[derive(Clone, Debug)]
pub struct Servers(Arc<[Place]>);

/// A listener and its server, as attributes of series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Unique name of the listener.
    pub name: String,
    /// Host or path of the upstream.
    pub address: String,
    /// Port of the upstream; `None` if it has none.
    pub port: Option<u16>,
}

/// The attributes of one listener.
#[derive(Debug)]
struct Place {
    /// `listener`, followed by the attributes of its server: `server.address` and `server.port`.
    attributes: Vec<(Key, Value)>,
    /// True if no earlier listener has the same server.
    is_first: bool,
}

impl Servers {
    /// Creates the attributes of these listeners.
    pub fn new(listeners: &[Listener]) -> Servers {
        let place = |(index, listener): (usize, &Listener)| {
            let Listener { name, address, port } = listener;
            let server = |other: &Listener| (&other.address, other.port) == (address, *port);
            let text = |key, text: &String| Some((key, Value::Text(text.as_str().into())));
            let port = port.map(|port| (Key::ServerPort, Value::Number(i64::from(port))));
            let attributes = [text(Key::Listener, name), text(Key::ServerAddress, address), port];
            Place {
                attributes: attributes.into_iter().flatten().collect(),
                is_first: !listeners.iter().take(index).any(server),
            }
        };
        Servers(listeners.iter().enumerate().map(place).collect())
    }

    /// The attributes of the server behind this listener.
    pub fn of(&self, listener: usize) -> &[(Key, Value)] {
        self.of_listener(listener).get(1..).unwrap_or_default()
    }

    /// The attributes of this listener and of its server.
    pub fn of_listener(&self, listener: usize) -> &[(Key, Value)] {
        self.0.get(listener).map_or(&[], |place| &place.attributes)
    }

    /// False if an earlier listener has the same server.
    pub fn is_first(&self, listener: usize) -> bool {
        self.0.get(listener).is_none_or(|place| place.is_first)
    }
}
