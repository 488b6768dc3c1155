//! Looking through a store for operations.

use semel::store::{Page, Pending};
use semel::{Key, Operation, OperationId, Record, Scope, State, Token};

/// Which operations are wanted. What is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) key: Option<Key>,
    pub(crate) route: Option<String>,
    pub(crate) namespace: Option<String>,
    /// `Some(None)`: those that belong to no tenant.
    pub(crate) tenant: Option<Option<String>>,
    /// Any of these; empty means all.
    pub(crate) states: Vec<State>,
}

impl Filter {
    /// The one operation that is meant, if all parts of its identity are named.
    pub(crate) fn operation(&self) -> Option<OperationId> {
        let (namespace, route) = (self.namespace.as_deref()?, self.route.as_deref()?);
        let scope = match self.tenant.as_ref()? {
            Some(tenant) => Scope::new(namespace, tenant, route),
            None => Scope::shared(namespace, route),
        };
        Some(Operation::new(scope.ok()?, self.key.clone()?).id())
    }

    /// Whether a record is wanted.
    pub(crate) fn takes(&self, record: &Record) -> bool {
        let scope = record.operation.scope();
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|text| text == found);
        self.key.as_ref().is_none_or(|key| key == record.operation.key())
            && is(&self.route, scope.route())
            && is(&self.namespace, scope.namespace())
            && self.tenant.as_ref().is_none_or(|tenant| tenant.as_deref() == scope.tenant())
            && (self.states.is_empty() || self.states.contains(&record.state))
    }
}

/// A list of what a store holds, in the order of tokens.
pub(crate) trait Catalogue: Send + Sync + 'static {
    /// Operations above `after` that the filter takes, looking at no more than `look` of any kind. A
    /// page may hold none and still name a next one. A claim that commits late may appear below a
    /// token already passed.
    fn list<'a>(&'a self, filter: &'a Filter, after: Token, look: u32) -> Pending<'a, Page>;
}
