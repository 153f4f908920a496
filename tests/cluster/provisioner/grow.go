package main

import (
	"context"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// annotationProvisioner is set on a claim by the volume controller.
const annotationProvisioner = "volume.kubernetes.io/storage-provisioner"

// growClaims does the part of an external resizer: a directory needs no work, so
// a larger request is written to the volume's capacity and the claim's status.
// An error is printed and met again at the claim's next event or resync.
func growClaims(ctx context.Context, client kubernetes.Interface, name string, claims cache.SharedIndexInformer) error {
	handle := func(object any) {
		claim, ok := object.(*v1.PersistentVolumeClaim)
		if !ok || !wantsGrowth(claim, name) {
			return
		}
		if err := grow(ctx, client, claim.DeepCopy()); err != nil {
			fmt.Fprintf(os.Stderr, "provisioner: growing %s/%s: %v\n", claim.Namespace, claim.Name, err)
		}
	}
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, object any) { handle(object) },
	})
	return err
}

// wantsGrowth tells whether a bound claim of ours asks for more than it has.
func wantsGrowth(claim *v1.PersistentVolumeClaim, name string) bool {
	if claim.Status.Phase != v1.ClaimBound || claim.Annotations[annotationProvisioner] != name {
		return false
	}
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	return wanted.Cmp(claim.Status.Capacity[v1.ResourceStorage]) > 0
}

func grow(ctx context.Context, client kubernetes.Interface, claim *v1.PersistentVolumeClaim) error {
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if wanted.Cmp(volume.Spec.Capacity[v1.ResourceStorage]) > 0 {
		volume.Spec.Capacity[v1.ResourceStorage] = wanted
		if _, err := client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	claim.Status.Capacity[v1.ResourceStorage] = wanted
	claim.Status.Conditions = nil
	_, err = client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}
