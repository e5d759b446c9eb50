/**
 * The types of `@onward/train`: train a program that `onward compile` wrote, on stock onnxruntime-web or onnxruntime-node.
 *
 * Every error is an `Error` whose message names what was found (a file, a tensor, a setting). After an error the state is
 * what it was before the call. Calls wait for each other: a call that is made while another runs begins when that ends, in
 * the order of the calls, so `evaluate` after `step` sees the state after that step.
 */
import type { InferenceSession, Tensor } from "onnxruntime-common";

/** What can be fed: a tensor of onnxruntime, or its data and dims; the program says the type. A scalar has dims `[]`. */
export type Value = Tensor | { data: ArrayLike<number> | ArrayLike<bigint> | ArrayLike<boolean>; dims: readonly number[] };

/** One batch by the names of `manifest.inputs` and `manifest.targets`. Names that a graph does not have are ignored. */
export type Batch = Record<string, Value>;

/** Values of the program's settings (`manifest.settings`) for one step, such as `{ learning_rate: 0.01 }`. */
export type Settings = Record<string, number | readonly number[]>;

/** One value of the program. `shape` has a number, a name (a free dimension) or null for each dimension. */
export interface TensorSpec {
  name: string;
  /** A name of numpy: `float32`, `float64`, `float16`, `int64`, `int32`, `uint8`, `bool` … */
  dtype: string;
  shape: (number | string | null)[];
}

export interface Graph {
  file: string;
  sha256: string;
  inputs: (TensorSpec & { role: "data" | "target" | "setting" | "state" })[];
  outputs: (TensorSpec & { role: "loss" | "output" | "state" | "total"; replaces?: string; stands_for?: string })[];
}

/** What `manifest.json` says; docs/program_format.md explains each field. */
export interface Manifest {
  format: "onward-program";
  version: 1;
  name: string;
  profile?: "default" | "portable";
  entries: string[];
  loss: string;
  inputs: TensorSpec[];
  targets: TensorSpec[];
  settings: Record<string, { dtype: string; shape: number[]; default: unknown; role?: "learning_rate" }>;
  state: { file: string; sha256: string; tensors: (TensorSpec & { trained: boolean; average_of?: string; loss_scale_of?: string })[] };
  graphs: Record<string, Graph>;
  phases?: Record<string, number>;
  readings?: Record<string, { value: string; output: string; target: string }[]>;
  totals: Record<string, unknown>;
  self_test?: {
    file: string;
    sha256: string;
    entries: Record<string, {
      loss: number;
      loss_tolerance: number;
      state: Record<string, { checksum: [number, number]; tolerance: number }>;
    }>;
  };
}

/** A program in memory: the parsed `manifest.json`, and the bytes of the files that it names. */
export interface ProgramFiles {
  manifest: Manifest;
  files: Record<string, Uint8Array | ArrayBuffer>;
}

export interface LoadOptions {
  /** The module `onnxruntime-web` or `onnxruntime-node`. */
  ort: { InferenceSession: typeof InferenceSession; Tensor: typeof Tensor; env?: unknown };
  /** Where the graphs run: `["wasm"]`, `["webgpu"]`, `["cpu"]` …; onnxruntime's default when absent. */
  executionProviders?: InferenceSession.SessionOptions["executionProviders"];
  /** Further options of the session of one graph; `role` is its key in `manifest.graphs`. */
  session?: (role: string, graph: Graph) => InferenceSession.SessionOptions;
  /**
   * Whether `load` runs the program's self-test. By default it does, except with the CPU provider of onnxruntime-node.
   * A program without one is loaded without; `selfTest()` then says `false`.
   */
  selfTest?: boolean;
  /** Another way to get a file than `fetch`. In Node.js give `readFile` of `node:fs/promises` to read from a folder. */
  read?: (url: string) => Promise<Uint8Array | ArrayBuffer>;
}

export interface StepResult {
  /** The loss of this batch before the update, of the first entry that ran: the mean that the model's loss computes. */
  loss: number;
  /** The loss of each entry that ran, by its name in `manifest.entries`. */
  losses: Record<string, number>;
  /** All outputs in training mode, by name, the losses among them. They are yours: `dispose()` what is on a GPU. */
  outputs: Record<string, Tensor>;
}

export interface EvaluateResult {
  /**
   * The loss of this batch in inference mode. Over several batches average it, weighted by their numbers of samples; where
   * `manifest.totals` has an expression (class weights, ignored labels, sums), compute that from the outputs instead.
   */
  loss: number;
  /** All outputs of the graph, the loss among them. */
  outputs: Record<string, Tensor>;
}

export declare class Trainer {
  /**
   * Return a trainer with the state that the program was compiled with.
   *
   * `source` is the address of the program's folder, with a slash at its end, or of its `manifest.json`; or its files in
   * memory. The sha256 of every file is checked when it is read: manifest and state now, a graph at its first use. (A
   * manifest that is given as an object is not checked.) A manifest may name only files beside it. A state tensor that the
   * state file lacks and the manifest lists is made by `initialize.onnx`, so zero moments need not be downloaded.
   */
  static load(source: string | URL | ProgramFiles, options: LoadOptions): Promise<Trainer>;

  readonly manifest: Manifest;
  /** The current state by name. `step`, `initialize` and `restore` replace its tensors and dispose the old ones: copy what you keep. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** The number of steps behind the state; `checkpoint` stores it and `restore` reads it, as Python's `Trainer.steps`. */
  readonly steps: number;

  /**
   * Train on one batch and replace the state.
   *
   * Without `entry`, all training entries run in turn, as in Python; a program with phases (`manifest.phases`) needs `entry`.
   * `settings` hold for this step only. A loss that is not finite is an error, and the state stays.
   */
  step(batch: Batch, settings?: Settings, entry?: string): Promise<StepResult>;
  /** Return loss and outputs in inference mode, of an entry (the first by default). The state stays. */
  evaluate(batch: Batch, entry?: string): Promise<EvaluateResult>;
  /** Return the outputs of the inference graph. The state stays. */
  infer(inputs: Batch): Promise<Record<string, Tensor>>;
  /** Set the state as the model's initialisation says, as Python's `Trainer.initialize(seed)`: a whole number from 0. `steps` is 0 again. */
  initialize(seed?: number): Promise<void>;

  /** Return the whole state as a safetensors file with checksums: for `restore`, and for Python's `Trainer.load_state`. */
  checkpoint(): Promise<Uint8Array>;
  /**
   * Replace the state by that of a checkpoint: one of this class, or one that Python wrote (`Trainer.save_state`, a
   * `step-….safetensors` of a run). A damaged file, and one of another model, is an error that says where.
   */
  restore(bytes: Uint8Array | ArrayBuffer): Promise<void>;
  /** Return the inference model with the current weights inside: a standard ONNX file with the model's metadata. */
  exportOnnx(): Promise<Uint8Array>;

  /**
   * Run the program's self-test on this runtime: one stored batch from the stored state. Return true if it passes, and
   * false if the program has none. The current state stays.
   *
   * Throws: an error that names every tensor that deviates, with what was found and what was expected.
   */
  selfTest(): Promise<boolean>;
  /** Free the sessions and the state. The trainer cannot be used afterwards. */
  release(): Promise<void>;
}
