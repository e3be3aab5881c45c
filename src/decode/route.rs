//! Which API a path belongs to.

/// What kind of request a path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// Every other path. Counted, not read.
    #[default]
    Other,
}

impl Route {
    /// The route of this request target (origin form or absolute form, query and all), whatever stands before the
    /// API's own path (`/engine1/v1/chat/completions`).
    pub fn of_target(target: &str) -> Route {
        let path = target.split(['?', '#']).next().unwrap_or(target);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.ends_with("/chat/completions") {
            Route::Chat
        } else if path.ends_with("/v1/completions") {
            Route::Completions
        } else {
            Route::Other
        }
    }

    /// `gen_ai.operation.name` of this route.
    pub fn operation(self) -> &'static str {
        match self {
            Route::Chat => "chat",
            Route::Completions => "text_completion",
            Route::Other => "other",
        }
    }
}
