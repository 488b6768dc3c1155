//! Opens what the binary's modules show to fuzz targets only.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    println!("cargo::rustc-cfg=fuzzing");
    println!("cargo::rerun-if-changed=build.rs");
}
