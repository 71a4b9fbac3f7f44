//! Causal attention on the CPU, from a graph to numbers.
use frostgraph::prelude::*;

/// Plans, compiles, runs.
pub fn main() -> Result<()> {
    let mut g = Graph::new(GraphOptions { io: DType::F32, ..Default::default() });
    let [q, k, v] = ["Q", "K", "V"].map(|name| g.tensor(Tensor::new(name, [1, 8, 128, 64])));
    let out = g.sdpa(q, k, v, Sdpa { mask: Mask::causal(), attn_scale: Some(AttnScale::Value(0.125)), ..Default::default() })?;
    g.output(out.o)?;
    let built = g.build(&Device::cpu())?; // ranked plans, and why the other engines decline
    let (plan, exe) = built.build_first()?;

    let (data, mut o) = (vec![1.0f32; 8 * 128 * 64], vec![0.0f32; 8 * 128 * 64]);
    let mut buffers = Bindings::new();
    for id in [q, k, v] {
        buffers.read(built.uid(id)?, &data);
    }
    buffers.write(built.uid(out.o)?, &mut o);
    let mut workspace = HostWorkspace::new(exe.workspace_bytes()).expect("memory for the workspace");
    exe.execute(&Stream::cpu(), &mut buffers, &mut workspace.workspace())?;
    println!("{plan}: O[0] = {}", o[0]);
    Ok(())
}
