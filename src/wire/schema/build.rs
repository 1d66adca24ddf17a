//! Build script: reads the schema files beside it and writes the message modules to `OUT_DIR`.
//! Standard library only.

mod check;
mod emit;
mod emit_codec;
mod emit_tables;
mod model;
mod parse;

use std::path::Path;
use std::{env, fs, process};

fn main() {
    if let Err(error) = generate() {
        eprintln!("error in the wire schemas: {error}");
        process::exit(1);
    }
}

fn generate() -> Result<(), Box<dyn std::error::Error>> {
    // Beside this file; cargo names it from the root of the package, or by its whole path.
    let here = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(file!());
    let folder = here.parent().ok_or("the build script is in no folder")?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "hw"))
        .collect();
    files.sort();
    let mut messages = Vec::new();
    for file in &files {
        messages.extend(parse::parse(
            &file.display().to_string(),
            &fs::read_to_string(file)?,
        )?);
    }
    check::check(&messages)?;
    let code = emit::emit(&messages);
    fs::write(Path::new(&env::var("OUT_DIR")?).join("messages.rs"), code)?;
    Ok(())
}
