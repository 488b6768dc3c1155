//! Which route a request belongs to.
//!
//! The layer does not match paths: in a service the router has done so, and a gateway has a matcher of
//! its own. Both answer one question here.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::request::Parts;

use crate::Route;

/// Finds the route of a request. Closures of the same shape do.
pub trait Routes: Send + Sync + 'static {
    /// The route, or `None` if the request passes untouched. Called once for every request.
    fn find(&self, request: &Parts) -> Option<Arc<Route>>;
}

impl<F> Routes for F
where
    F: Fn(&Parts) -> Option<Arc<Route>> + Send + Sync + 'static,
{
    fn find(&self, request: &Parts) -> Option<Arc<Route>> {
        self(request)
    }
}

/// One route for everything that comes by.
pub(crate) struct Single(pub(crate) Arc<Route>);

impl Routes for Single {
    fn find(&self, _request: &Parts) -> Option<Arc<Route>> {
        Some(self.0.clone())
    }
}

/// Routes that can be exchanged while requests run. A request keeps the route it was found with.
#[derive(Clone)]
pub struct Switch(Arc<ArcSwap<Box<dyn Routes>>>);

impl Switch {
    /// Begins with these.
    pub fn new(routes: impl Routes) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Box::new(routes) as Box<dyn Routes>)))
    }

    /// Requests from now on are found in these.
    pub fn set(&self, routes: impl Routes) {
        self.0.store(Arc::new(Box::new(routes) as Box<dyn Routes>));
    }
}

impl Routes for Switch {
    fn find(&self, request: &Parts) -> Option<Arc<Route>> {
        self.0.load().find(request)
    }
}
