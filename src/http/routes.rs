//! A router that knows its own routes, so that a test can ask each of them for what is not the asker's.

use axum::Router;
use axum::routing::MethodRouter;

use super::AppState;

/// Routes and their patterns. axum's own router cannot list what it holds.
#[derive(Debug, Default)]
pub struct Routes {
    router: Router<AppState>,
    patterns: Vec<&'static str>,
}

impl Routes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route: what answers on the paths of a pattern, with the methods it takes.
    pub fn route(mut self, pattern: &'static str, methods: MethodRouter<AppState>) -> Self {
        self.patterns.push(pattern);
        Self { router: self.router.route(pattern, methods), patterns: self.patterns }
    }

    /// Adds the routes of another face.
    pub fn merge(mut self, other: Self) -> Self {
        self.patterns.extend(other.patterns);
        Self { router: self.router.merge(other.router), patterns: self.patterns }
    }

    /// Changes what the routes have in common: a layer, what they answer to other methods.
    pub fn each(self, change: impl FnOnce(Router<AppState>) -> Router<AppState>) -> Self {
        Self { router: change(self.router), patterns: self.patterns }
    }

    /// Every pattern, in no order that means anything.
    pub fn patterns(&self) -> &[&'static str] {
        &self.patterns
    }

    /// The router itself.
    pub fn into_router(self) -> Router<AppState> {
        self.router
    }
}
