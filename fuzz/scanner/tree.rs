//! The known places of the texts: every [`Shape`], nested to any depth.

use tokometer_decode::scan;
use tokometer_decode::scan::{Keys, Shape, Sink};

/// Maximum depth of known containers that the scanner enters.
pub const DEPTH: usize = 8;

/// Maximum length of numbers and keys that the scanner reports.
pub const LONGEST: usize = 36;

/// A known place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Tree,
    Nodes,
    Lists,
    Both,
    Text,
    Word,
    Words,
    Number,
    Numbers,
    Mark,
}

/// The known keys of every known object.
pub const PAIRS: &[(&str, Node)] = &[
    ("node", Node::Tree),
    ("nodes", Node::Nodes),
    ("lists", Node::Lists),
    ("both", Node::Both),
    ("text", Node::Text),
    ("word", Node::Word),
    ("words", Node::Words),
    ("number", Node::Number),
    ("numbers", Node::Numbers),
    ("mark", Node::Mark),
];

static KEYS: Keys<Node> = Keys::new(PAIRS);

impl Node {
    /// The place of the value of this key, whose escapes are decoded.
    pub fn of_key(key: &[u8]) -> Option<Node> {
        PAIRS.iter().find_map(|(name, node)| (name.as_bytes() == key).then_some(*node))
    }
}

impl scan::Place for Node {
    fn shape(self) -> Shape<Node> {
        match self {
            Node::Tree => Shape::Object(&KEYS),
            Node::Nodes => Shape::Array(Node::Tree),
            Node::Lists => Shape::Array(Node::Lists),
            Node::Both => Shape::OneOrMany(&KEYS, Node::Both),
            Node::Words => Shape::Array(Node::Word),
            Node::Numbers => Shape::Array(Node::Number),
            Node::Text => Shape::Text,
            Node::Word => Shape::Word,
            Node::Number => Shape::Number,
            Node::Mark => Shape::Mark,
        }
    }
}

/// A result reported by the scanner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Begin(Node, u8),
    Text(Node, bool),
    /// `None`: not UTF-8.
    Word(Node, Option<String>),
    Number(Node, Vec<u8>),
    /// A word that the sink refused.
    Refused(Node),
}

/// A sink that records its calls and refuses every third word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finds {
    pub found: Vec<Found>,
    /// The current, incomplete word.
    pub word: Vec<u8>,
    words: usize,
}

impl Finds {
    /// True when the next word is wanted.
    pub fn want(&mut self, node: Node) -> bool {
        self.words += 1;
        let wanted = !self.words.is_multiple_of(3);
        if !wanted {
            self.found.push(Found::Refused(node));
        }
        wanted
    }
}

impl Sink<Node> for Finds {
    fn begin(&mut self, node: Node, first: u8) {
        self.found.push(Found::Begin(node, first));
    }

    fn text(&mut self, node: Node, empty: bool) {
        self.found.push(Found::Text(node, empty));
    }

    fn wants_word(&mut self, node: Node) -> bool {
        self.word.clear();
        self.want(node)
    }

    fn word_part(&mut self, _: Node, part: &[u8]) {
        self.word.extend_from_slice(part);
    }

    fn word_end(&mut self, node: Node) {
        self.found.push(Found::Word(node, String::from_utf8(std::mem::take(&mut self.word)).ok()));
    }

    fn number(&mut self, node: Node, written: &[u8]) {
        self.found.push(Found::Number(node, written.to_vec()));
    }
}
