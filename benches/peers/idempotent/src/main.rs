//! With the allocator that a program has unless it chooses another.

mod serve;

fn main() -> anyhow::Result<()> {
    serve::serve()
}
