//! With mimalloc, as the others are measured too.

#[path = "../serve.rs"]
mod serve;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    serve::serve()
}
