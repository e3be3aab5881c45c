//! Determines the API of a request body by its keys.

use crate::Route;

/// The distinguishing keys that a body has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shapes(u16);

impl Shapes {
    pub(super) const MESSAGES: Shapes = Shapes(1);
    pub(super) const PROMPT: Shapes = Shapes(2);
    pub(super) const INPUT: Shapes = Shapes(4);
    pub(super) const INPUTS: Shapes = Shapes(8);
    pub(super) const QUERY: Shapes = Shapes(16);
    pub(super) const DOCUMENTS: Shapes = Shapes(32);
    pub(super) const TEXT_1: Shapes = Shapes(64);
    /// An instance with a prompt for SGLang.
    pub(super) const INSTANCE_TEXT: Shapes = Shapes(128);
    /// An instance in the format of TGI's own API.
    pub(super) const INSTANCE_INPUTS: Shapes = Shapes(256);
    /// An instance in the format of a chat.
    pub(super) const INSTANCE_MESSAGES: Shapes = Shapes(512);
    /// An instance of any kind.
    const INSTANCES: Shapes = Shapes(Shapes::INSTANCE_TEXT.0 | Shapes::INSTANCE_INPUTS.0 | Shapes::INSTANCE_MESSAGES.0);

    pub(super) fn has(self, shape: Shapes) -> bool {
        self.0 & shape.0 != 0
    }

    pub(super) fn insert(&mut self, shape: Shapes) {
        self.0 |= shape.0;
    }

    /// The API that vLLM 0.33, SGLang 0.5 and TGI 3.3 apply to such a body at `/invocations`, and the latter two at
    /// `/vertex_generate` and `/vertex`. `None` if the instances are of several kinds.
    pub(super) fn api(self) -> Option<Route> {
        match self {
            shape if shape.has(Shapes::INSTANCES) => match Shapes(shape.0 & Shapes::INSTANCES.0) {
                Shapes::INSTANCE_TEXT => Some(Route::Generate),
                Shapes::INSTANCE_INPUTS => Some(Route::TgiCompat),
                Shapes::INSTANCE_MESSAGES => Some(Route::Chat),
                _ => None,
            },
            shape if shape.has(Shapes::MESSAGES) => Some(Route::Chat),
            shape if shape.has(Shapes::PROMPT) => Some(Route::Completions),
            shape if shape.has(Shapes::QUERY) && shape.has(Shapes::DOCUMENTS) => Some(Route::Rerank),
            shape if shape.has(Shapes::TEXT_1) => Some(Route::Score),
            shape if shape.has(Shapes::INPUTS) => Some(Route::TgiCompat),
            shape if shape.has(Shapes::INPUT) => Some(Route::Embeddings),
            _ => None,
        }
    }
}
