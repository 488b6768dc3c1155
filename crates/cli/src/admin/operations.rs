//! Finding operations and looking at one.

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use semel::store::Filter;
use semel::{Key, OperationId, Record, Token};
use serde::Deserialize;
use serde_json::json;

use super::audit;
use super::problem::{Problem, Slug};

use super::{Admin, Answer, Peer, Shared};
use crate::shown::{Bodies, Operation, STATES};

/// Operations in a page unless a call says otherwise.
const PAGE: u32 = 50;
/// Most operations in a page.
const PAGE_MAX: u32 = 500;
/// Looks into the store for one page of an answer; then the caller asks on.
const LOOKS_MAX: u32 = 20;
/// Operations looked at in one of them. Looks begin small and grow while little is found: a key is one
/// of many, a state perhaps every second.
const LOOK_MAX: u32 = 5000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    key: Option<String>,
    route: Option<String>,
    namespace: Option<String>,
    tenant: Option<String>,
    state: Option<String>,
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
}

impl Wanted {
    fn filter(&self, namespace: &str) -> Result<Filter, Problem> {
        let key = self.key.as_ref().map(|text| Key::parse(text.as_bytes())).transpose();
        let key = key.map_err(|error| Problem::bad(format!("key: {error}")))?;
        let named = |name: &str| {
            let found = STATES.iter().find(|(.., each)| *each == name).map(|(_, stored, _)| *stored);
            let all = || STATES.map(|(.., each)| each).join(", ");
            found.ok_or_else(|| Problem::bad(format!("state: {name:?} is none of {}", all())))
        };
        let states = self.state.as_ref().map(|list| list.split(',').map(named).collect()).transpose()?;
        Ok(Filter {
            key,
            route: self.route.clone(),
            namespace: Some(self.namespace.clone().unwrap_or_else(|| namespace.to_owned())),
            // `tenant=` asks for operations that belong to nobody.
            tenant: self.tenant.clone().map(|tenant| Some(tenant).filter(|tenant| !tenant.is_empty())),
            states,
        })
    }

    fn limit(&self) -> Result<u32, Problem> {
        match self.limit.unwrap_or(PAGE) {
            limit @ 1..=PAGE_MAX => Ok(limit),
            _ => Err(Problem::bad(format!("limit: give 1 to {PAGE_MAX}"))),
        }
    }
}

pub(super) async fn find(
    State(admin): State<Shared>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Answer {
    let Query(wanted) = wanted.map_err(|refused| Problem::bad(refused.body_text()))?;
    let (filter, limit) = (wanted.filter(&admin.namespace)?, wanted.limit()?);
    let after = Token(wanted.after);
    match filter.operation() {
        // A whole identity needs no search; the rest of what is wanted still counts.
        Some(operation) => {
            let record = admin.store.get(operation.id()).await?;
            let found = record.filter(|record| filter.matches(record) && record.token > after);
            Ok(page(found.iter(), None))
        }
        None => looked_through(&admin, &filter, after, limit as usize).await,
    }
}

async fn looked_through(admin: &Admin, filter: &Filter, after: Token, limit: usize) -> Answer {
    let mut found: Vec<Record> = Vec::new();
    let (mut next, mut look) = (Some(after), limit as u32);
    for _ in 0..LOOKS_MAX {
        let Some(after) = next.filter(|_| found.len() < limit) else { break };
        let seen = admin.store.list(filter, after, look).await?;
        found.extend(seen.records);
        next = seen.next;
        look = look.saturating_mul(4).min(LOOK_MAX);
    }
    if found.len() > limit {
        found.truncate(limit);
        next = found.last().map(|last| last.token);
    }
    Ok(page(found.iter(), next))
}

fn page<'a>(records: impl Iterator<Item = &'a Record>, next: Option<Token>) -> Response {
    let operations: Vec<_> = records.map(Operation::summary).collect();
    super::json(&json!({ "operations": operations, "next": next.map(|token| token.0) }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct View {
    body: Option<String>,
}

pub(super) async fn show(
    State(admin): State<Shared>,
    id: Result<Path<String>, PathRejection>,
    view: Result<Query<View>, QueryRejection>,
    peer: Option<Extension<Peer>>,
) -> Answer {
    let Query(view) = view.map_err(|refused| Problem::bad(refused.body_text()))?;
    let bodies = match view.body.as_deref() {
        None | Some("0") if semel::mutant::on("bodies-always-shown") => Bodies::Shown,
        None | Some("0") => Bodies::Hidden,
        Some("1") => Bodies::Shown,
        Some(_) => return Err(Problem::bad("body: give 0 or 1")),
    };
    let id = parse(id)?;
    let record = admin.store.get(id).await?.ok_or_else(|| not_found(id))?;
    if bodies == Bodies::Shown {
        audit::read_bodies(&admin, &record.operation, peer.map(|Extension(peer)| peer));
    }
    Ok(super::json(&json!(Operation::whole(&record, bodies))))
}

/// A part of the path, percent-decoded.
pub(super) fn part(part: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    part.map(|Path(part)| part).map_err(|refused| Problem::bad(refused.body_text()))
}

/// An id is 64 hexadecimal digits.
pub(super) fn parse(id: Result<Path<String>, PathRejection>) -> Result<OperationId, Problem> {
    let id = part(id)?;
    OperationId::from_hex(&id).ok_or_else(|| {
        Problem::bad("an operation's id has 64 hexadecimal digits; find it with GET /v1/operations?key=KEY")
    })
}

pub(super) fn not_found(id: OperationId) -> Problem {
    Problem::new(
        Slug::OperationNotFound,
        format!("the store remembers no operation {id}: it never was, or it expired and was swept"),
    )
}
