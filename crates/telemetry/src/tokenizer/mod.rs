//! Counts the tokens of answers that nobody counted, by their text and the model's own vocabulary (`tokenizer.json`).
//!
//! Off unless a vocabulary is set. The data path hands a record and its text over and goes on; a thread of low priority
//! counts, and hands the record on with the count or, whatever happens, without it. What cannot be counted is tallied by
//! its reason.
//!
//! It counts the text, and that is an estimate of what was sampled. The end-of-text token, the marks around reasoning and
//! special tokens are sampled, but are no text; a stop string that was cut off, and white space that a parser of reasoning
//! took away, are missing; and a model may sample the same text in other pieces than its tokenizer cuts it in. Prompts are
//! not counted: they pass a chat template first, which is not known here.

mod counting;
mod settings;
mod vocabulary;
mod worker;

pub use counting::Counting;
pub use settings::Settings;
pub use vocabulary::{Error, Tokenize, Vocabularies};
