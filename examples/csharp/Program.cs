// Runs a model that onnxbolt optimized, by ONNX Runtime's C# API: on a GPU with the library of
// fused kernels, or on the CPU without it.
//
//     dotnet run -- MODEL.onnx cpu|cuda[:N] [NAME=1x3x224x224 ..]
//
// docs/deploy/csharp.md explains it. It was neither compiled nor run by onnxbolt's tests.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime;

static class Program
{
    const int Runs = 20;

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate IntPtr Manifest();

    static int Main(string[] arguments)
    {
        if (arguments.Length < 2)
        {
            Console.Error.WriteLine("usage: RunModel MODEL.onnx cpu|cuda[:N] [NAME=1x3x224x224 ..]");
            return 2;
        }
        try
        {
            Run(arguments[0], DeviceOf(arguments[1]), arguments.Skip(2).ToList());
            return 0;
        }
        catch (Exception error) // ONNX Runtime's errors are among them
        {
            Console.Error.WriteLine("error: " + error.Message);
            return 1;
        }
    }

    static void Run(string model, string device, List<string> given)
    {
        string library = Path.ChangeExtension(Path.GetFullPath(model), ".onnxbolt.so");
        using (SessionOptions options = OptionsOf(device, library))
        using (InferenceSession session = new InferenceSession(model, options))
        using (RunOptions runOptions = new RunOptions())
        {
            if (device != "cpu") CheckDigest(session, library);
            List<string> names = session.InputNames.ToList();
            List<OrtValue> inputs = names.Select(name => InputOf(session, name, given)).ToList();
            List<double> milliseconds = new List<double>();
            for (int run = 0; run <= Runs; ++run) // the first one is not measured
            {
                Stopwatch watch = Stopwatch.StartNew();
                using (var outputs = session.Run(runOptions, names, inputs, session.OutputNames))
                {
                    watch.Stop();
                    if (run > 0) milliseconds.Add(watch.Elapsed.TotalMilliseconds);
                    if (run == Runs) Print(session.OutputNames, outputs);
                }
            }
            foreach (OrtValue input in inputs) input.Dispose();
            milliseconds.Sort();
            Console.WriteLine("median of {0} runs: {1:F3} ms", Runs, milliseconds[Runs / 2]);
        }
    }

    // "cpu", or the number of a GPU.
    static string DeviceOf(string text)
    {
        if (text == "cpu") return text;
        if (text == "cuda") return "0";
        uint number;
        if (text.StartsWith("cuda:") && uint.TryParse(text.Substring(5), out number))
            return number.ToString();
        throw new ArgumentException("'" + text + "' is no device: cpu, cuda or cuda:N");
    }

    static SessionOptions OptionsOf(string device, string library)
    {
        SessionOptions options = new SessionOptions();
        // ONNX Runtime's reordering of channels for CPU kernels crashes on some fp16 models
        options.AddSessionConfigEntry(
            "optimization.disable_specified_optimizers", "NchwcTransformer");
        if (device == "cpu") return options;
        options.AddSessionConfigEntry("onnxbolt.device", device);
        // the library registers nothing and warns where no GPU can run its kernels
        if (File.Exists(library)) options.RegisterCustomOpLibrary(library);
        using (OrtCUDAProviderOptions cuda = new OrtCUDAProviderOptions())
        {
            // DEFAULT for models whose sizes vary, EXHAUSTIVE for those of fixed sizes
            cuda.UpdateOptions(new Dictionary<string, string>
            {
                { "device_id", device },
                { "cudnn_conv_algo_search", "DEFAULT" },
            });
            options.AppendExecutionProvider_CUDA(cuda);
        }
        return options;
    }

    // Model and library carry the digest of the same sources. Where they differ, ONNX Runtime would
    // run the function bodies of op types that the library lacks, silently.
    static void CheckDigest(InferenceSession session, string library)
    {
        string digest;
        if (!session.ModelMetadata.CustomMetadataMap.TryGetValue("onnxbolt.digest", out digest))
            return; // no fused nodes
        if (!File.Exists(library))
        {
            Console.Error.WriteLine("warning: there is no library beside the model, so that fused"
                + " nodes run as ONNX functions, which is slower. Run: onnxbolt build MODEL.onnx");
            return;
        }
        IntPtr symbol = NativeLibrary.GetExport(NativeLibrary.Load(library), "onnxbolt_manifest");
        Manifest manifest = Marshal.GetDelegateForFunctionPointer<Manifest>(symbol);
        if (!Marshal.PtrToStringUTF8(manifest()).Contains(digest))
            throw new InvalidDataException(
                library + " is not the library of this model. Run: onnxbolt build");
    }

    // Seeded numbers from -1 to 1 for an input of floats; `given` has NAME=SHAPE of open sizes.
    static OrtValue InputOf(InferenceSession session, string name, List<string> given)
    {
        NodeMetadata metadata = session.InputMetadata[name];
        if (metadata.ElementType != typeof(float))
            throw new NotSupportedException("input " + name + " is not of float32");
        string text = given.FirstOrDefault(each => each.StartsWith(name + "="));
        long[] shape = text == null
            ? metadata.Dimensions.Select(size => (long)size).ToArray()
            : text.Substring(name.Length + 1).Split('x').Select(long.Parse).ToArray();
        if (shape.Any(size => size < 0))
            throw new ArgumentException(
                "input " + name + " has open sizes: give them by " + name + "=1x3x224x224");
        Random random = new Random(0);
        float[] values = new float[shape.Aggregate(1L, (count, size) => count * size)];
        for (long i = 0; i < values.Length; ++i)
            values[i] = (float)(2 * random.NextDouble() - 1);
        return OrtValue.CreateTensorValueFromMemory(values, shape);
    }

    static void Print(IReadOnlyList<string> names, IReadOnlyCollection<OrtValue> outputs)
    {
        foreach (var output in names.Zip(outputs, (name, value) => new { name, value }))
            Console.WriteLine("output {0}: {1}", output.name,
                string.Join("x", output.value.GetTensorTypeAndShape().Shape));
    }
}
