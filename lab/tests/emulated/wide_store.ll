; A buffer store of 16 bytes at a scalar offset, and a product that overwrites what it stores: gfx942 and gfx950 need a
; wait state between both (llvm#197267).
define amdgpu_kernel void @wide_store(ptr addrspace(1) %in, ptr addrspace(1) %out, i32 %at) #0 {
  %lane = call i32 @llvm.amdgcn.workitem.id.x()
  %wide = zext i32 %lane to i64
  %from = getelementptr inbounds <4 x float>, ptr addrspace(1) %in, i64 %wide
  %loaded = load <4 x float>, ptr addrspace(1) %from, align 16
  %stored = fadd <4 x float> %loaded, %loaded
  %buffer = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %out, i16 0, i64 4096, i32 159744)
  %place = shl i32 %lane, 4
  call void @llvm.amdgcn.raw.ptr.buffer.store.v4f32(<4 x float> %stored, ptr addrspace(8) %buffer, i32 %place, i32 %at, i32 0)
  call void @llvm.amdgcn.sched.barrier(i32 0)
  %product = fmul <4 x float> %stored, %stored
  %behind = add i32 %place, 2048
  call void @llvm.amdgcn.raw.ptr.buffer.store.v4f32(<4 x float> %product, ptr addrspace(8) %buffer, i32 %behind, i32 0, i32 0)
  ret void
}

declare i32 @llvm.amdgcn.workitem.id.x()
declare ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1), i16, i64, i32)
declare void @llvm.amdgcn.raw.ptr.buffer.store.v4f32(<4 x float>, ptr addrspace(8), i32, i32, i32 immarg)
declare void @llvm.amdgcn.sched.barrier(i32 immarg)

attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-lds-kernel-id" "amdgpu-no-workgroup-id-y" "amdgpu-no-workgroup-id-z" "amdgpu-no-workitem-id-y" "amdgpu-no-workitem-id-z" "amdgpu-no-heap-ptr" "amdgpu-no-hostcall-ptr" "amdgpu-no-multigrid-sync-arg" "amdgpu-no-completion-action" "amdgpu-no-default-queue" }
