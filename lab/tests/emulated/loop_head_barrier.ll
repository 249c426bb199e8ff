; A software pipeline with one buffer: each iteration stores the value that was loaded one iteration before, and the
; barrier at the head of the loop must see the stores of the iteration before done.
target triple = "amdgcn-amd-amdhsa"
@buffer = internal addrspace(3) global [128 x i32] poison, align 16

define amdgpu_kernel void @pipeline(ptr addrspace(1) %in, ptr addrspace(1) %out, i32 %n) #0 {
entry:
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %mine = getelementptr i32, ptr addrspace(3) @buffer, i32 %id
  %other = xor i32 %id, 64
  %theirs = getelementptr i32, ptr addrspace(3) @buffer, i32 %other
  %from = getelementptr i32, ptr addrspace(1) %in, i32 %id
  %more0 = icmp sgt i32 %n, 0
  %first = load i32, ptr addrspace(1) %from
  br i1 %more0, label %loop, label %done

loop:
  %i = phi i32 [ 0, %entry ], [ %i.next, %loop ]
  %sum = phi i32 [ 0, %entry ], [ %sum.next, %loop ]
  %held = phi i32 [ %first, %entry ], [ %loaded, %loop ]
  %at = getelementptr i32, ptr addrspace(1) %from, i32 %i
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %read = load i32, ptr addrspace(3) %theirs
  %loaded = load i32, ptr addrspace(1) %at
  %sum.next = add i32 %sum, %read
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  store i32 %held, ptr addrspace(3) %mine
  %i.next = add i32 %i, 1
  %more = icmp slt i32 %i.next, %n
  br i1 %more, label %loop, label %done

done:
  %total = phi i32 [ 0, %entry ], [ %sum.next, %loop ]
  %place = getelementptr i32, ptr addrspace(1) %out, i32 %id
  store i32 %total, ptr addrspace(1) %place
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
attributes #0 = { "amdgpu-flat-work-group-size"="128,128" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-lds-kernel-id" "amdgpu-no-workgroup-id-y" "amdgpu-no-workgroup-id-z" "amdgpu-no-workitem-id-y" "amdgpu-no-workitem-id-z" "amdgpu-no-heap-ptr" "amdgpu-no-hostcall-ptr" "amdgpu-no-multigrid-sync-arg" "amdgpu-no-completion-action" "amdgpu-no-default-queue" }
