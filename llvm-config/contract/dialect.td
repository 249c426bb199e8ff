// A dialect that mlir-tblgen must translate to C++ with the layer's includes only.
include "mlir/IR/OpBase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Contract_Dialect : Dialect {
  let name = "contract";
  let cppNamespace = "::contract";
}

def Contract_TwiceOp : Op<Contract_Dialect, "twice", [Pure]> {
  let arguments = (ins AnyInteger:$value);
  let results = (outs AnyInteger:$result);
}
